import { render } from "preact";
import { startStream } from "./api/stream";
import { App } from "./app";
import "./theme";
import "./styles/base.css";
import "./styles/parts.css";

startStream();
render(<App />, document.getElementById("app")!);
