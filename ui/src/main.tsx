import { render } from "preact";
import { readSession } from "./api/session";
import { startStream } from "./api/stream";
import { App } from "./app";
import "./theme";
import "./styles/base.css";
import "./styles/parts.css";

render(<App />, document.getElementById("app")!);
void readSession().then(startStream);
