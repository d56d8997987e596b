// A fault of one page leaves the frame around it working.
import { Component, type ComponentChildren } from "preact";
import { visible } from "./text";

interface Props {
  /** Another place is tried anew. */
  place: string;
  children: ComponentChildren;
}

export class Boundary extends Component<Props, { fault: string | null; place: string }> {
  override state = { fault: null as string | null, place: this.props.place };

  static override getDerivedStateFromProps(props: Props, state: { place: string }) {
    return props.place === state.place ? null : { fault: null, place: props.place };
  }

  override componentDidCatch(error: unknown) {
    console.error(error);
    this.setState({ fault: error instanceof Error ? error.message : String(error) });
  }

  override render() {
    if (this.state.fault === null) return this.props.children;
    return (
      <>
        <h1>This page has a fault</h1>
        <p class="notice bad" role="alert">
          {visible(this.state.fault)}
        </p>
        <p>
          Nothing of what is stored is lost.{" "}
          <button type="button" onClick={() => location.reload()}>
            Load it again
          </button>
        </p>
      </>
    );
  }
}
