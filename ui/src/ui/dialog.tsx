// Dialogs: the browser's own element keeps the focus inside and closes on Escape.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "../styles/dialog.css";

interface DialogProps {
  title: string;
  close: () => void;
  children: ComponentChildren;
}

/** Open as long as it is rendered. */
export function Dialog({ title, close, children }: DialogProps) {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    if (!box.current?.open) box.current?.showModal();
    // The browser goes to the first button, which is at the end of a long one.
    box.current?.scrollTo(0, 0);
  }, []);
  return (
    <dialog
      ref={box}
      class="dialog"
      aria-label={title}
      onClose={close}
      onClick={(click) => click.target === box.current && close()}
    >
      <div class="stack">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

interface ConfirmProps {
  title: string;
  /** The word on the button that does it. */
  action: string;
  isDanger?: boolean;
  run: () => Promise<unknown>;
  close: () => void;
  children?: ComponentChildren;
}

/** Asks before something is done, does it, and says so if that fails. */
export function Confirm({ title, action, isDanger, run, close, children }: ConfirmProps) {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const confirm = async () => {
    setBusy(true);
    setProblem("");
    try {
      await run();
      close();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setBusy(false);
    }
  };
  return (
    <Dialog title={title} close={close}>
      {children}
      {problem && (
        <p class="notice bad" role="alert">
          {problem}
        </p>
      )}
      <div class="row dialog-actions">
        <button onClick={close}>Back</button>
        <button class={isDanger ? "danger" : "primary"} disabled={isBusy} onClick={confirm}>
          {action}
        </button>
      </div>
    </Dialog>
  );
}
