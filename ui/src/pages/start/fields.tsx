// Fields of the start page: a name, what it is for, and what is wrong with it.
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import type { FieldName, Form, Problems } from "./form";

/** What the parts of the form share. */
export interface FormProps {
  form: Form;
  /** Only of fields that were left, or all once somebody tried to start. */
  problems: Problems;
  set: (name: FieldName, value: string) => void;
  touch: (name: FieldName) => void;
}

interface FieldProps extends FormProps {
  name: FieldName;
  title: string;
  hint?: ComponentChildren;
  placeholder?: string;
}

function Frame(props: FieldProps & { id: string; children: ComponentChildren; class?: string }) {
  const problem = props.problems[props.name];
  return (
    <div class={`field ${props.class ?? ""}`}>
      <label for={props.id}>{props.title}</label>
      {props.children}
      {problem ? (
        <span class="problem" id={`${props.id}-about`} role="alert">
          {problem}
        </span>
      ) : (
        props.hint && (
          <span class="hint" id={`${props.id}-about`}>
            {props.hint}
          </span>
        )
      )}
    </div>
  );
}

function shared({ form, problems, set, touch, name, hint }: FieldProps, id: string) {
  return {
    id,
    name,
    value: form.draft[name] ?? "",
    "aria-invalid": problems[name] ? ("true" as const) : undefined,
    "aria-describedby": problems[name] || hint ? `${id}-about` : undefined,
    onInput: (event: { currentTarget: { value: string } }) => set(name, event.currentTarget.value),
    onBlur: () => touch(name),
  };
}

export function TextField(props: FieldProps & { list?: string; class?: string }) {
  const id = useId();
  return (
    <Frame {...props} id={id}>
      <input
        {...shared(props, id)}
        type="text"
        list={props.list}
        placeholder={props.placeholder}
        autocomplete="off"
        spellcheck={false}
      />
    </Frame>
  );
}

export function NumberField(props: FieldProps) {
  const id = useId();
  return (
    <Frame {...props} id={id} class="short">
      <input
        {...shared(props, id)}
        type="text"
        inputMode="decimal"
        placeholder={props.placeholder}
        autocomplete="off"
      />
    </Frame>
  );
}

export function LongField(props: FieldProps & { rows: number }) {
  const id = useId();
  return (
    <Frame {...props} id={id}>
      <textarea
        {...shared(props, id)}
        rows={props.rows}
        placeholder={props.placeholder}
        spellcheck={false}
      />
    </Frame>
  );
}

export function ChoiceField(props: FieldProps & { choices: [string, string][] }) {
  const id = useId();
  return (
    <Frame {...props} id={id} class="short">
      <select {...shared(props, id)}>
        {props.choices.map(([value, title]) => (
          <option key={value} value={value}>
            {title}
          </option>
        ))}
      </select>
    </Frame>
  );
}
