// Sizes and times as people read them.

export function seconds(value: number | null | undefined): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value < 0.001) return "0 s";
  // The limits are where rounding would reach the next unit.
  if (value < 0.9995) return `${Math.round(value * 1000)} ms`;
  if (value < 59.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  const [hours, minutes] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60)];
  return hours > 0 ? `${hours} h ${minutes} min` : `${minutes} min ${whole % 60} s`;
}

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [size, unit] = [value, 0];
  while (Math.round(size) >= 1024 && unit < units.length - 1)
    [size, unit] = [size / 1024, unit + 1];
  return `${unit === 0 || size >= 100 ? Math.round(size) : size.toFixed(1)} ${units[unit]}`;
}

/** 950, 12.3k, 4.56M. */
export function count(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  if (value < 10_000) return value.toLocaleString("en");
  // The limits are where rounding would reach the next unit.
  if (value < 999_500) return `${(value / 1e3).toFixed(value < 99_950 ? 1 : 0)}k`;
  if (value < 999_500_000) return `${(value / 1e6).toFixed(value < 99_995_000 ? 2 : 0)}M`;
  return `${(value / 1e9).toFixed(2)}G`;
}

export function dollars(value: number | null | undefined): string {
  if (!value) return "–";
  if (value < 0.00005) return "<$0.0001";
  if (value < 0.01) return `$${value.toFixed(4)}`;
  return value < 999.995 ? `$${value.toFixed(2)}` : `$${Math.round(value).toLocaleString("en")}`;
}

/** With two digits, or with as many as tell it from 0 and 1: what is only partly right never looks whole. */
export function reward(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  const isWhole = Number.isInteger(value);
  for (let digits = 2; digits <= REWARD_DIGITS; digits++) {
    const text = value.toFixed(digits);
    if (isWhole || !Number.isInteger(Number(text))) return text;
  }
  return `${value}`;
}

const REWARD_DIGITS = 6;

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
