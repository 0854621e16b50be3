// Tensors as the protocol writes them: JSON in requests, bytes where these are shorter or JSON has no words for them.

const half = (bits) => {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) {
    return fraction ? NaN : sign * Infinity;
  }
  return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
};
const brain = (bits) => new DataView(new Uint32Array([bits << 16]).buffer).getFloat32(0, true);

function toHalf(value) {
  const bits = new Uint32Array(new Float32Array([value]).buffer)[0];
  const [sign, exponent, fraction] = [(bits >>> 16) & 0x8000, ((bits >>> 23) & 255) - 112, bits & 0x7fffff];
  if (exponent <= 0) {
    return sign | (exponent < -10 ? 0 : (fraction | 0x800000) >> (14 - exponent));
  }
  return exponent >= 31 ? sign | 0x7c00 : sign | (exponent << 10) | (fraction >> 13);
}

// Bytes of an element, how one is read from a DataView, and how one is written.
const TYPES = {
  BOOL: [1, (view, at) => Boolean(view.getUint8(at)), (view, at, value) => view.setUint8(at, value ? 1 : 0)],
  INT8: [1, (view, at) => view.getInt8(at), (view, at, value) => view.setInt8(at, value)],
  UINT8: [1, (view, at) => view.getUint8(at), (view, at, value) => view.setUint8(at, value)],
  INT16: [2, (view, at) => view.getInt16(at, true), (view, at, value) => view.setInt16(at, value, true)],
  UINT16: [2, (view, at) => view.getUint16(at, true), (view, at, value) => view.setUint16(at, value, true)],
  INT32: [4, (view, at) => view.getInt32(at, true), (view, at, value) => view.setInt32(at, value, true)],
  UINT32: [4, (view, at) => view.getUint32(at, true), (view, at, value) => view.setUint32(at, value, true)],
  INT64: [8, (view, at) => view.getBigInt64(at, true), (view, at, value) => view.setBigInt64(at, BigInt(Math.round(value)), true)],
  UINT64: [8, (view, at) => view.getBigUint64(at, true), (view, at, value) => view.setBigUint64(at, BigInt(Math.round(value)), true)],
  FP16: [2, (view, at) => half(view.getUint16(at, true)), (view, at, value) => view.setUint16(at, toHalf(value), true)],
  BF16: [2, (view, at) => brain(view.getUint16(at, true)),
    (view, at, value) => view.setUint16(at, new Uint32Array(new Float32Array([value]).buffer)[0] >>> 16, true)],
  FP32: [4, (view, at) => view.getFloat32(at, true), (view, at, value) => view.setFloat32(at, value, true)],
  FP64: [8, (view, at) => view.getFloat64(at, true), (view, at, value) => view.setFloat64(at, value, true)],
};

const sizeOf = (shape) => shape.reduce((product, size) => product * size, 1);

// The bytes of a tensor whose elements a function of their index gives.
function packed(datatype, count, value) {
  const [size, , set] = TYPES[datatype];
  const data = new Uint8Array(size * count);
  const view = new DataView(data.buffer);
  for (let index = 0; index < count; index += 1) {
    set(view, index * size, value(index));
  }
  return data;
}

// Elements of type BYTES, each behind its length.
function packedBytes(elements) {
  const data = new Uint8Array(elements.reduce((sum, each) => sum + 4 + each.length, 0));
  const view = new DataView(data.buffer);
  let at = 0;
  for (const each of elements) {
    view.setUint32(at, each.length, true);
    data.set(each, at + 4);
    at += 4 + each.length;
  }
  return data;
}

function unpacked(datatype, data) {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const values = [];
  if (datatype === "BYTES") {
    for (let at = 0; at + 4 <= data.length;) {
      const size = view.getUint32(at, true);
      values.push(data.subarray(at + 4, at + 4 + size));
      at += 4 + size;
    }
    return values;
  }
  if (!TYPES[datatype]) {
    throw new Error(`this page cannot read tensors of type ${datatype}`);
  }
  const [size, get] = TYPES[datatype];
  for (let at = 0; at + size <= data.length; at += size) {
    values.push(get(view, at));
  }
  return values;
}

// The body and the headers of an inference: `inputs` have a name, datatype and shape, and `data` or `raw`.
function written(inputs, parameters) {
  const raws = inputs.filter((input) => input.raw).map((input) => input.raw);
  const head = {
    parameters: { ...parameters, binary_data_output: true },
    inputs: inputs.map(({ name, datatype, shape, data, raw }) => (
      raw ? { name, datatype, shape, parameters: { binary_data_size: raw.length } } : { name, datatype, shape, data })),
  };
  const text = new TextEncoder().encode(JSON.stringify(head));
  if (!raws.length) {
    return { body: text, headers: { "Content-Type": "application/json" } };
  }
  return {
    body: new Blob([text, ...raws]),
    headers: { "Content-Type": "application/octet-stream", "Inference-Header-Content-Length": String(text.length) },
  };
}

// The tensors of a response, with their elements as `values`.
function outputsOf(document, raw = new Uint8Array()) {
  let at = 0;
  return (document.outputs || []).map((output) => {
    const size = (output.parameters || {}).binary_data_size;
    if (size === undefined) {
      return { ...output, values: (output.data || []).flat(Infinity) };
    }
    at += size;
    return { ...output, values: unpacked(output.datatype, raw.subarray(at - size, at)) };
  });
}
