// Reads a transcript page by page, one page at a time, and again where it has grown meanwhile.
import { ApiError } from "../../../api/client";
import type { Entry, TranscriptPage } from "../../../api/types";

export interface Read {
  entries: Entry[];
  /** Null until the first answer. */
  total: number | null;
  error: ApiError | null;
}

export const NOTHING_READ: Read = { entries: [], total: null, error: null };

export const isComplete = ({ entries, total }: Read) => total !== null && entries.length >= total;

type Load = (start: number, abort: AbortSignal) => Promise<TranscriptPage>;

const RETRY_MS = 2000;

export class Reader {
  private held = NOTHING_READ;
  private readonly abort = new AbortController();
  private isReading = false;
  /** Whether there may be more than the answer that is on its way tells. */
  private isStale = false;
  private timer: ReturnType<typeof setTimeout> | undefined;

  private readonly load: Load;
  private readonly onRead: (read: Read) => void;
  private readonly retryMs: number;

  constructor(load: Load, onRead: (read: Read) => void, retryMs = RETRY_MS) {
    this.load = load;
    this.onRead = onRead;
    this.retryMs = retryMs;
  }

  /** Reads the next page, unless one is on its way, nothing follows, or the last one failed. */
  more() {
    if (!isComplete(this.held) && !this.held.error) void this.read(this.held.entries.length);
  }

  /** The rollout has gone on. */
  grown() {
    if (this.isReading) this.isStale = true;
    else if (isComplete(this.held)) this.readEnd();
  }

  retry() {
    void this.read(this.held.entries.length);
  }

  stop() {
    this.abort.abort();
    clearTimeout(this.timer);
  }

  /** The last entry is read again too: its tools may have answered by now. */
  private readEnd() {
    void this.read(Math.max(0, this.held.entries.length - 1));
  }

  private async read(start: number) {
    if (this.isReading || this.abort.signal.aborted) return;
    clearTimeout(this.timer);
    this.isReading = true;
    this.isStale = false;
    try {
      const page = await this.load(start, this.abort.signal);
      if (this.abort.signal.aborted) return;
      const entries = [...this.held.entries.slice(0, page.start), ...page.entries];
      // A page without entries is the end, whatever the total says.
      const total = page.entries.length === 0 ? entries.length : page.total;
      this.keep({ entries, total, error: null });
    } catch (error) {
      if (this.abort.signal.aborted) return;
      const known = error instanceof ApiError ? error : new ApiError(0, "error", String(error));
      this.keep({ ...this.held, error: known });
      if (known.code === "unreachable")
        this.timer = setTimeout(() => void this.read(start), this.retryMs);
      return;
    } finally {
      this.isReading = false;
    }
    if (this.isStale && isComplete(this.held)) this.readEnd();
  }

  private keep(read: Read) {
    this.held = read;
    this.onRead(read);
  }
}
