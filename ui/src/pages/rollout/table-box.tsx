import type { ComponentChildren } from "preact";

/** A table that scrolls by itself where it is wider than the page, also with the keyboard. */
export function TableBox({ label, children }: { label: string; children: ComponentChildren }) {
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label={label}>
      <table>{children}</table>
    </div>
  );
}
