// Pictures: files as inputs, and outputs that are pictures.

const CHANNELS = new Set([1, 3, 4]);

// The layout of a tensor that could be a picture, without the dimension of the batch: null if it could not.
function layoutOf(shape) {
  const sizes = [...shape];
  while (sizes.length > 3 && sizes[0] <= 1) {
    sizes.shift();
  }
  if (sizes.length > 3) {
    sizes.splice(0, sizes.length - 3);
  }
  if (sizes.length === 3 && CHANNELS.has(sizes[2])) {
    return { height: sizes[0], width: sizes[1], channels: sizes[2], last: true };
  }
  if (sizes.length === 3 && CHANNELS.has(sizes[0])) {
    return { height: sizes[1], width: sizes[2], channels: sizes[0], last: false };
  }
  return sizes.length === 2 ? { height: sizes[0], width: sizes[1], channels: 1, last: true } : null;
}

const placeOf = (layout, y, x, channel) => (layout.last
  ? (y * layout.width + x) * layout.channels + channel
  : (channel * layout.height + y) * layout.width + x);

// The elements of an input, of a picture that is drawn at its size; `scale` is what white becomes.
async function elementsOfPicture(file, layout, scale) {
  const picture = await createImageBitmap(file);
  const canvas = element("canvas", { width: layout.width, height: layout.height });
  const context = canvas.getContext("2d");
  context.drawImage(picture, 0, 0, layout.width, layout.height);
  const pixels = context.getImageData(0, 0, layout.width, layout.height).data;
  const elements = new Float64Array(layout.width * layout.height * layout.channels);
  for (let y = 0; y < layout.height; y += 1) {
    for (let x = 0; x < layout.width; x += 1) {
      const at = 4 * (y * layout.width + x);
      const grey = 0.299 * pixels[at] + 0.587 * pixels[at + 1] + 0.114 * pixels[at + 2];
      for (let channel = 0; channel < layout.channels; channel += 1) {
        elements[placeOf(layout, y, x, channel)] = ((layout.channels === 1 ? grey : pixels[at + channel]) / 255) * scale;
      }
    }
  }
  return elements;
}

// A canvas with a tensor's first picture; null if its values are not those of one.
function pictureOf(output) {
  const layout = layoutOf(output.shape);
  if (!layout || layout.height < 8 || layout.width < 8 || layout.height * layout.width > 4_000_000
      || !["UINT8", "FP32", "FP16", "FP64"].includes(output.datatype)) {
    return null;
  }
  const count = layout.height * layout.width * layout.channels;
  const values = output.values.slice(0, count).map(Number);
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) {
    least = Math.min(least, value);
    most = Math.max(most, value);
  }
  if (!(least >= 0 && most <= 255)) {
    return null;
  }
  const scale = output.datatype === "UINT8" || most > 1 ? 1 : 255;
  const canvas = element("canvas", { width: layout.width, height: layout.height, role: "img",
    "aria-label": `${output.name} as a picture of ${layout.width} by ${layout.height} points` });
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(layout.width, layout.height);
  for (let y = 0; y < layout.height; y += 1) {
    for (let x = 0; x < layout.width; x += 1) {
      const at = 4 * (y * layout.width + x);
      for (let channel = 0; channel < 3; channel += 1) {
        pixels.data[at + channel] = scale * values[placeOf(layout, y, x, layout.channels === 1 ? 0 : channel)];
      }
      pixels.data[at + 3] = layout.channels === 4 ? scale * values[placeOf(layout, y, x, 3)] : 255;
    }
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

const SIGNATURES = [
  ["image/png", [0x89, 0x50, 0x4e, 0x47]], ["image/jpeg", [0xff, 0xd8, 0xff]], ["image/gif", [0x47, 0x49, 0x46, 0x38]],
  ["image/webp", [0x52, 0x49, 0x46, 0x46]], ["image/bmp", [0x42, 0x4d]],
];
const pictureType = (data) => (SIGNATURES.find(([, start]) => start.every((byte, index) => data[index] === byte)) || [null])[0];
