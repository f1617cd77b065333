// Axes: values to pixels and back, and round numbers for the ticks.

export function scale(low, high, start, end, logarithmic = false) {
  const to = logarithmic ? Math.log10 : (x) => x;
  const from = logarithmic ? (x) => 10 ** x : (x) => x;
  const [a, b] = [to(low), to(high)];
  const unit = (end - start) / (b - a || 1);
  const at = (x) => start + (to(x) - a) * unit;
  at.back = (pixel) => from(a + (pixel - start) / unit);
  at.ticks = (count) => (logarithmic && high / low >= 20 ? decades(low, high) : round(low, high, count));
  return at;
}

function round(low, high, count) {
  const rough = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 2.5, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high * (1 + 1e-12) && found.length < 100; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

function decades(low, high) {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++)
    for (const factor of [1, 2, 5]) if (factor * 10 ** power >= low && factor * 10 ** power <= high) found.push(factor * 10 ** power);
  return found;
}

export function short(x) {
  if (Math.abs(x) >= 1e6) return `${Number((x / 1e6).toPrecision(3))}M`;
  if (Math.abs(x) >= 1e4) return `${Number((x / 1e3).toPrecision(3))}k`;
  return String(Number(x.toPrecision(4)));
}
