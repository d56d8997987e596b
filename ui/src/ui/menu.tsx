// A button that opens a small panel below itself.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "../styles/menu.css";

interface Props {
  label: ComponentChildren;
  /** For those who cannot see where the button stands. */
  name: string;
  class?: string;
  isOn?: boolean;
  /** Where the panel is put: below the button, or above it. */
  side?: "below" | "above";
  children: (close: () => void) => ComponentChildren;
}

export function Menu({ label, name, class: extra = "", isOn, side = "below", children }: Props) {
  const [isOpen, setOpen] = useState(false);
  const box = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (!isOpen) return;
    const outside = (event: Event) => {
      if (!box.current?.contains(event.target as Node)) setOpen(false);
    };
    addEventListener("pointerdown", outside);
    addEventListener("focusin", outside);
    return () => {
      removeEventListener("pointerdown", outside);
      removeEventListener("focusin", outside);
    };
  }, [isOpen]);
  const close = () => {
    setOpen(false);
    button.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (!isOpen) return;
    if (event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
      close();
    } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      const items = [...(box.current?.querySelectorAll<HTMLElement>(".menu-item") ?? [])];
      const at = items.indexOf(document.activeElement as HTMLElement);
      const next = event.key === "ArrowDown" ? at + 1 : Math.max(0, at - 1);
      items[Math.min(items.length - 1, next)]?.focus();
      event.preventDefault();
    }
  };
  return (
    <div class={`menu ${extra}`} ref={box} onKeyDown={onKeyDown}>
      <button
        ref={button}
        type="button"
        class={isOn ? "menu-button on" : "menu-button"}
        aria-expanded={isOpen}
        aria-label={name}
        onClick={() => setOpen(!isOpen)}
      >
        {label}
        <svg width="8" height="8" viewBox="0 0 8 8" aria-hidden="true">
          <path d="M1 2.5l3 3 3-3" fill="none" stroke="currentColor" stroke-width="1.4" />
        </svg>
      </button>
      {isOpen && (
        <div class={`menu-panel ${side}`} role="group" aria-label={name}>
          {children(close)}
        </div>
      )}
    </div>
  );
}
