// A node.js client of the gRPC port: "node grpc_node.js PORT PROTO", with @grpc/grpc-js and @grpc/proto-loader beside it.
// Prints a line of JSON with what it got.
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [port, proto] = process.argv.slice(2);
const options = { keepCase: true, longs: Number, defaults: true };
const { inference } = grpc.loadPackageDefinition(loader.loadSync(proto, options));
const client = new inference.GRPCInferenceService(`127.0.0.1:${port}`, grpc.credentials.createInsecure());

const ints = (value) => Buffer.from(new Int32Array(16).fill(value).buffer);
const tensor = (name) => ({ name, datatype: 'INT32', shape: [1, 16] });
const request = (id, model = 'simple') => ({
  id, model_name: model, inputs: [tensor('INPUT0'), tensor('INPUT1')], raw_input_contents: [ints(5), ints(3)],
});
const values = (response) => response.raw_output_contents.map((raw) => raw.readInt32LE(0));

const unary = (name, message, more = {}) => new Promise((resolve, reject) => {
  const deadline = Date.now() + 20000;
  client[name](message, new grpc.Metadata(), { deadline, ...more },
    (error, response) => (error ? reject(error) : resolve(response)));
});

const streamed = (count) => new Promise((resolve, reject) => {
  const ids = [];
  const call = client.ModelStreamInfer();
  call.on('data', (response) => ids.push(response.infer_response.id));
  call.on('error', reject);
  call.on('end', () => resolve(ids));
  for (let number = 0; number < count; number += 1) call.write(request(String(number)));
  call.end();
});

async function main() {
  const live = (await unary('ServerLive', {})).live;
  const many = await Promise.all([...Array(300).keys()].map((number) => unary('ModelInfer', request(String(number)))));
  const refusal = await unary('ModelInfer', request('x', 'nosuch')).catch((error) => [error.code, error.details]);
  const cancelled = await new Promise((resolve) => {
    const call = client.ModelStreamInfer();
    call.on('error', (error) => resolve(error.code));
    call.write(request('cancelled'));
    call.on('data', () => call.cancel());
  });
  const length = 2000000;
  const large = await unary('ModelInfer', {
    model_name: 'identity_UINT8', inputs: [{ name: 'INPUT0', datatype: 'UINT8', shape: [1, length] }],
    raw_input_contents: [Buffer.alloc(length, 7)],
  });
  const [sent] = large.raw_output_contents;
  console.log(JSON.stringify({
    live, refusal, cancelled, large: [sent.length, sent[0], sent[length - 1]],
    ids: many.map((response) => response.id), values: many.map(values), streamed: await streamed(50),
  }));
  client.close();
}

main().catch((error) => { console.error(error); process.exit(1); });
