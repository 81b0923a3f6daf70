// Points by WebGL, or on a plain canvas where there is none. Both take the same: bytes red, green, blue, strength of
// every point, and where the map lies on the screen.
const FAINT = 128;  // a strength below it is drawn first, under the others

const VERTEX = `
attribute vec2 place; attribute vec4 colour; uniform vec2 scale, shift; uniform float size, front; varying vec4 shown;
void main() {
  bool isFaint = colour.a < 0.5;
  gl_Position = isFaint == (front > 0.5) ? vec4(2.0, 2.0, 2.0, 1.0) : vec4(place * scale + shift, 0.0, 1.0);
  gl_PointSize = size;
  shown = vec4(colour.rgb * colour.a, colour.a);
}`;
const FRAGMENT = `
precision highp float; varying vec4 shown; uniform float size;
void main() {
  float edge = clamp((0.5 - length(gl_PointCoord - 0.5)) * size + 0.5, 0.0, 1.0);
  if (edge <= 0.0) discard;
  gl_FragColor = shown * edge;
}`;

function openDrawing(canvas, places) {
  return webglDrawing(canvas, places) ?? plainDrawing(canvas, places);
}

function webglDrawing(canvas, places) {
  const gl = canvas.getContext("webgl", {antialias: false, premultipliedAlpha: true});
  if (!gl) return null;
  const program = gl.createProgram();
  for (const [kind, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(kind);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    gl.attachShader(program, shader);
  }
  gl.bindAttribLocation(program, 0, "place");
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) return null;
  gl.useProgram(program);
  const at = name => gl.getUniformLocation(program, name);
  const uniforms = {scale: at("scale"), shift: at("shift"), size: at("size"), front: at("front")};
  const bind = (name, data, kind, width) => {
    const attribute = gl.getAttribLocation(program, name);
    const buffer = gl.createBuffer();
    gl.bindBuffer(gl.ARRAY_BUFFER, buffer);
    if (data) gl.bufferData(gl.ARRAY_BUFFER, data, gl.STATIC_DRAW);
    gl.enableVertexAttribArray(attribute);
    gl.vertexAttribPointer(attribute, width, kind, true, 0, 0);
    return buffer;
  };
  bind("place", places, gl.UNSIGNED_SHORT, 2);
  const colours = bind("colour", null, gl.UNSIGNED_BYTE, 4);
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  let hasFaint = false;
  return {
    kind: "webgl",
    colour(bytes, faint) {
      hasFaint = faint;
      gl.bindBuffer(gl.ARRAY_BUFFER, colours);
      gl.bufferData(gl.ARRAY_BUFFER, bytes, gl.DYNAMIC_DRAW);
    },
    draw(view, size) {
      const {width, height} = canvas, ratio = view.ratio;
      gl.viewport(0, 0, width, height);
      gl.clearColor(0, 0, 0, 0);
      gl.clear(gl.COLOR_BUFFER_BIT);
      const [x, y] = [2 * view.pixels * ratio / width, 2 * view.pixels * ratio / height];
      gl.uniform2f(uniforms.scale, x, y);
      gl.uniform2f(uniforms.shift, -view.x * x, -view.y * y);
      gl.uniform1f(uniforms.size, Math.max(1.5, size * ratio));
      for (const front of hasFaint ? [0, 1] : [1]) {
        gl.uniform1f(uniforms.front, front);
        gl.drawArrays(gl.POINTS, 0, places.length / 2);
      }
    },
  };
}

function plainDrawing(canvas, places) {
  const context = canvas.getContext("2d");
  let words = new Uint32Array(0), strengths = new Uint8Array(0), hasFaint = false;
  return {
    kind: "canvas",
    colour(bytes, faint) {
      hasFaint = faint;
      strengths = bytes.filter((_, place) => place % 4 === 3);
      words = new Uint32Array(bytes.slice().buffer);
    },
    draw(view, size) {
      const {width, height} = canvas, image = context.createImageData(width, height), pixels = new Uint32Array(image.data.buffer);
      const side = Math.max(1, Math.round(size * view.ratio * 0.85)), unit = view.pixels * view.ratio;
      for (const front of hasFaint ? [false, true] : [true]) {
        for (let point = 0; point < words.length; point++) {
          if ((strengths[point] >= FAINT) !== front) continue;
          const left = Math.round((places[2 * point] / 65535 - view.x) * unit + width / 2 - side / 2);
          const top = Math.round(height / 2 - (places[2 * point + 1] / 65535 - view.y) * unit - side / 2);
          if (left < 0 || top < 0 || left + side > width || top + side > height) continue;
          for (let row = top; row < top + side; row++) pixels.fill(words[point], row * width + left, row * width + left + side);
        }
      }
      context.putImageData(image, 0, 0);
    },
  };
}
