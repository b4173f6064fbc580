// An option chosen with a pointer is sent at once; on the keyboard, Enter or "Choose" sends it.
const form = document.getElementById("options");
let isPointer = false;
form?.addEventListener("pointerdown", () => { isPointer = true; });
form?.addEventListener("keydown", () => { isPointer = false; });
form?.addEventListener("change", () => { if (isPointer) form.requestSubmit(); });
