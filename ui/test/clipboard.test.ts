import assert from "node:assert/strict";
import { test } from "node:test";
import { toClipboard } from "../src/ui/clipboard";

class Field {
  value = "";
  isThere = false;
  select() {}
  remove() {
    this.isThere = false;
  }
}

/** A browser that copies what is selected, or refuses to. */
function browser(clipboard: object | undefined, canSelect: boolean) {
  const field = new Field();
  const state = { copied: "", field };
  const document = {
    activeElement: null,
    body: { append: () => (field.isThere = true) },
    createElement: () => field,
    execCommand: () => {
      if (canSelect && field.isThere) state.copied = field.value;
      return canSelect;
    },
  };
  Object.defineProperty(globalThis, "navigator", { value: { clipboard }, configurable: true });
  Object.assign(globalThis, { document, HTMLElement: Field });
  return state;
}

test("the browser's own way is taken where there is one", async () => {
  let copied = "";
  const own = { writeText: async (text: string) => void (copied = text) };
  const state = browser(own, true);
  assert.equal(await toClipboard("abc"), true);
  assert.deepEqual([copied, state.copied], ["abc", ""]);
});

test("without it, or when it refuses, what is selected is copied, and nothing stays behind", async () => {
  const refusing = { writeText: () => Promise.reject(new Error("no")) };
  for (const own of [undefined, refusing]) {
    const state = browser(own, true);
    assert.equal(await toClipboard("abc"), true);
    assert.equal(state.copied, "abc");
    assert.equal(state.field.isThere, false);
  }
});

test("a browser that copies in no way is told", async () => {
  browser(undefined, false);
  assert.equal(await toClipboard("abc"), false);
});
