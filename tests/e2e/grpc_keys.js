// A node.js client of the gRPC port with keys: "node grpc_keys.js PORT PROTO KEY", with @grpc/grpc-js and
// @grpc/proto-loader beside it. Prints a line of JSON with what it got.
const grpc = require('@grpc/grpc-js');
const loader = require('@grpc/proto-loader');

const [port, proto, key] = process.argv.slice(2);
const { inference } = grpc.loadPackageDefinition(loader.loadSync(proto, { keepCase: true, defaults: true }));
const client = new inference.GRPCInferenceService(`127.0.0.1:${port}`, grpc.credentials.createInsecure());

const metadata = (fields) => {
  const made = new grpc.Metadata();
  Object.entries(fields).forEach(([name, value]) => made.set(name, value));
  return made;
};
const name = (fields) => new Promise((resolve) => {
  client.ModelMetadata({ name: 'speaker' }, metadata(fields), { deadline: Date.now() + 20000 },
    (error, response) => resolve(error ? error.code : response.name));
});

async function main() {
  const shown = [{ authorization: `Bearer ${key}` }, { 'x-api-key': key }, {}, { 'x-api-key': 'msk_wrong' }];
  console.log(JSON.stringify(await Promise.all(shown.map(name))));
  client.close();
}

main().catch((error) => { console.error(error); process.exit(1); });
