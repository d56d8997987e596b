/* Shows the server's OpenAPI document with Swagger UI. Addresses are relative to /docs, so that this works below a prefix. */
"use strict";

const DOCUMENT = "openapi.json";

function say(text, link) {
  const state = document.getElementById("state");
  state.textContent = text;
  if (link) {
    const anchor = document.createElement("a");
    anchor.href = link.href;
    anchor.textContent = link.text;
    state.append(" ", anchor);
  }
}

function show(spec) {
  // Swagger UI has a dark look of its own, which it takes from this class.
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const follow = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
  dark.addEventListener("change", follow);
  follow();
  window.SwaggerUIBundle({
    spec,
    dom_id: "#docs",
    deepLinking: true,
    docExpansion: "list",
    defaultModelsExpandDepth: 0,
    filter: true,
    tryItOutEnabled: true,
    // A token that was typed in stays in this page alone.
    persistAuthorization: false,
    // Nothing is sent to another host.
    validatorUrl: null,
    presets: [window.SwaggerUIBundle.presets.apis],
  });
}

async function start() {
  const response = await fetch(DOCUMENT, { headers: { accept: "application/json" } });
  if (response.status === 401) {
    say("This server wants its token.", { href: "web/", text: "Sign in, then come back." });
    return;
  }
  if (!response.ok) {
    say(`The server answered ${response.status} for ${DOCUMENT}.`);
    return;
  }
  const spec = await response.json();
  // The document names itself as its server; without it as its place, relative addresses would be those of this page.
  spec.servers = [{ url: new URL(".", document.baseURI).href.replace(/\/$/, "") }];
  show(spec);
}

start().catch((error) => say(`The document could not be loaded: ${error.message}`));
