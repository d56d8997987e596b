// Sizes and times as people read them.

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 0.001) return "0 s";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 60) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [size, unit] = [value, 0];
  while (size >= 1024 && unit < units.length - 1) [size, unit] = [size / 1024, unit + 1];
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

/** 950, 12.3k, 4.56M. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 10_000) return value.toLocaleString("en");
  if (value < 1e6) return `${(value / 1e3).toFixed(value < 1e5 ? 1 : 0)}k`;
  if (value < 1e9) return `${(value / 1e6).toFixed(value < 1e8 ? 2 : 0)}M`;
  return `${(value / 1e9).toFixed(2)}G`;
}

export function dollars(value: number | null | undefined): string {
  if (!value) return "–";
  if (value >= 1000) return `$${Math.round(value).toLocaleString("en")}`;
  return value < 0.01 ? `$${value.toFixed(4)}` : `$${value.toFixed(2)}`;
}

export function reward(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : value.toFixed(2);
}

export function logprob(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : value.toFixed(3);
}

/** `14:03:22`, with the date where it is not today's. */
export function time(unix: number | null | undefined): string {
  if (!unix) return "–";
  const date = new Date(unix * 1000);
  const clock = date.toLocaleTimeString("en-GB");
  const isToday = date.toDateString() === new Date().toDateString();
  return isToday ? clock : `${date.toLocaleDateString("en-CA")} ${clock}`;
}

/** `3 min ago`. */
export function ago(unix: number, now: number = Date.now() / 1000): string {
  const passed = Math.max(0, now - unix);
  if (passed < 5) return "now";
  if (passed < 60) return `${Math.floor(passed)} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} min ago`;
  if (passed < 86_400) return `${Math.floor(passed / 3600)} h ago`;
  return `${Math.floor(passed / 86_400)} d ago`;
}

/** The end of an id, which is what differs. */
export const shortId = (id: string) => id.slice(-8);

/** `timed_out` as `timed out`. */
export const words = (name: string) => name.replaceAll("_", " ");
