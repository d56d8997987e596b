// Copying, also where the browser's own way is missing: it is there only for https and for this machine.

/** Whether the text is in the clipboard now. */
export async function toClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return bySelection(text);
  }
}

/** The older way, which copies what is selected. */
function bySelection(text: string): boolean {
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.value = text;
  field.readOnly = true;
  field.className = "visually-hidden";
  // Whatever is outside of an open dialog cannot be selected.
  (focused?.closest("dialog") ?? document.body).append(field);
  field.select();
  let isCopied = false;
  try {
    isCopied = document.execCommand("copy");
  } catch {
    // A browser without it is told from one that refuses by nothing: the text is shown either way.
  }
  field.remove();
  if (focused instanceof HTMLElement) focused.focus();
  return isCopied;
}
