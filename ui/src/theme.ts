// Light or dark: as the system has it, until somebody chooses.
import { effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";

function stored(): Theme {
  try {
    const value = localStorage.getItem("rollcage-theme");
    return value === "light" || value === "dark" ? value : "system";
  } catch {
    return "system";
  }
}

export const theme = signal<Theme>(stored());
const system = matchMedia("(prefers-color-scheme: dark)");
const isSystemDark = signal(system.matches);
system.addEventListener("change", (change) => (isSystemDark.value = change.matches));

effect(() => {
  const isDark = theme.value === "dark" || (theme.value === "system" && isSystemDark.value);
  document.documentElement.dataset.theme = isDark ? "dark" : "light";
});

export function nextTheme() {
  const order: Theme[] = ["system", "light", "dark"];
  theme.value = order[(order.indexOf(theme.value) + 1) % order.length]!;
  try {
    localStorage.setItem("rollcage-theme", theme.value);
  } catch {
    // A frame without storage forgets the choice.
  }
}
