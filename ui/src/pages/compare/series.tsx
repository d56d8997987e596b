// Colours of series, and small parts of charts.

/** Classes, so that each theme has its own colours; more series than these are not drawn at once. */
export const SERIES_COLOURS = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];

export function percent(value: number, digits = 0): string {
  return `${(value * 100).toFixed(digits)}%`;
}

export function SeriesMark({ index }: { index: number }) {
  return <span class={`series-mark ${SERIES_COLOURS[index] ?? ""}`} aria-hidden="true" />;
}

/** Pass, partial and fail as parts of one bar. */
export function VerdictBar(props: { passed: number; partial: number; failed: number }) {
  const { passed, partial, failed } = props;
  const all = passed + partial + failed;
  if (all === 0) return <div class="verdict-bar" />;
  const width = (count: number) => ({ width: `${(100 * count) / all}%` });
  const words = `${passed} passed, ${partial} partial, ${failed} failed`;
  return (
    <div class="verdict-bar" role="img" aria-label={words} title={words}>
      <span class="good" style={width(passed)} />
      <span class="part" style={width(partial)} />
      <span class="bad" style={width(failed)} />
    </div>
  );
}

/** Which part of a long list is shown. */
export function Pager(props: {
  start: number;
  size: number;
  total: number;
  label: string;
  onStart: (start: number) => void;
}) {
  const { start, size, total, label, onStart } = props;
  if (total <= size) return null;
  const last = Math.min(total, start + size);
  return (
    <nav class="row pager" aria-label={label}>
      <button
        class="small"
        disabled={start === 0}
        onClick={() => onStart(Math.max(0, start - size))}
      >
        Previous
      </button>
      <span class="number small" aria-live="polite">
        {start + 1}–{last} of {total.toLocaleString("en")}
      </span>
      <button class="small" disabled={last >= total} onClick={() => onStart(start + size)}>
        Next
      </button>
    </nav>
  );
}
