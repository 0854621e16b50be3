// A conversation with a model that generates text, or texts that it continues. It lasts as long as the page.

const conversations = new Map(); // by name of a model: { messages, draft, settings }
const MOST_TEXT = 200_000; // characters of an answer
const FRAME = 20; // ms
const FIELDS = { // of the settings: their attributes and what they are called
  temperature: ["Temperature", { type: "number", min: 0, max: 2, step: "any" }],
  max_tokens: ["Max tokens", { type: "number", min: 1, step: 1 }],
};
const ROLES = { user: "You", assistant: "Model", system: "System" };

const newConversation = () => ({ messages: [], draft: "", system: "", settings: {} });

function chatBox(row, surface) {
  const isChat = surface.kind === "chat";
  const state = conversations.get(row.name) || newConversation();
  conversations.set(row.name, state);
  const turns = element("div", { class: "turns", role: "log", tabindex: "0", "aria-label": isChat ? "Conversation" : "Texts" });
  const input = element("textarea", { rows: 2, "aria-label": isChat ? "Message" : "Text to continue",
    placeholder: isChat ? "Message" : "A text to continue" });
  input.value = state.draft;
  const send = element("button", { type: "submit", class: "primary" }, "Send");
  const fresh = element("button", { type: "button" }, isChat ? "New chat" : "Clear");
  const place = element("div", { class: "figures", role: "status" });
  const form = element("form", {}, input, element("div", { class: "fields" }, send, fresh,
    element("span", { class: "soft keys" }, "Enter sends, Shift+Enter begins a line")), place, chatSettings(state, surface, isChat));
  const box = element("section", { class: "chat", "aria-labelledby": "chat-title" },
    element("h3", { id: "chat-title" }, isChat ? "Chat" : "Continue a text"),
    element("p", { class: "soft", hidden: isChat }, "The model has no chat template, so it gets your text as it stands."), turns, form);
  turns.append(...state.messages.map((message) => turnOf(message)[0]));
  turns.hidden = !state.messages.length;

  input.addEventListener("input", () => { state.draft = input.value; });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (send.textContent === "Send") {
        form.requestSubmit();
      }
    }
  });
  fresh.addEventListener("click", () => {
    stopCalls();
    state.messages = [];
    turns.replaceChildren();
    turns.hidden = true;
    place.replaceChildren();
    input.focus();
  });
  const prepare = () => {
    const status = element("p", { class: "soft" });
    place.replaceChildren(status);
    return status;
  };
  stoppable(form, send, prepare, async (status, signal) => {
    const text = input.value;
    if (!text.trim()) {
      throw new Error("There is no text to send.");
    }
    const question = { role: "user", content: text };
    const answer = { role: "assistant", content: "" };
    const [questionTurn] = turnOf(question);
    const [answerTurn, words] = turnOf(answer);
    const thought = element("div", { class: "words soft" }, document.createTextNode(""));
    turns.hidden = false;
    turns.append(questionTurn, answerTurn);
    turns.scrollTop = turns.scrollHeight;
    answerTurn.setAttribute("aria-busy", "true"); // screen readers get the whole answer, not each piece
    input.value = state.draft = "";
    const before = state.messages;
    state.messages = [...before, question, answer];
    const figures = new GenerationFigures();
    const shower = new TextShower(turns, words.firstChild, () => write(status, figures.text));
    try {
      const messages = state.system.trim() ? [{ role: "system", content: state.system }, ...before, question] : [...before, question];
      const body = { model: row.name, stream: true, stream_options: { include_usage: true },
        ...surface.suggested, ...state.settings,
        ...(isChat ? { messages } : { prompt: text }) };
      await generate(isChat ? "v1/chat/completions" : "v1/completions", body, signal, (piece, usage, thinking) => {
        figures.count(piece || thinking, usage);
        if (thinking) {
          thought.firstChild.appendData(thinking);
          words.before(thought);
        }
        answer.content += piece;
        return shower.add(piece);
      });
      shower.end();
    } catch (error) {
      shower.end();
      if (!answer.content && state.messages.at(-1) === answer) { // as if it had not been sent
        state.messages = before;
        questionTurn.remove();
        answerTurn.remove();
        turns.hidden = !before.length;
        input.value = state.draft = text;
      }
      if (error.name !== "AbortError") {
        throw error;
      }
      write(status, ["stopped", figures.text].filter(Boolean).join(", "));
    } finally {
      answerTurn.removeAttribute("aria-busy");
    }
  });
  return box;
}

// The element of a message, and the place of its text.
function turnOf({ role, content }) {
  const words = element("div", { class: "words" }, document.createTextNode(content));
  const head = element("div", { class: "who" }, element("span", { class: "soft" }, ROLES[role]), copyButton(words));
  return [element("article", { class: `turn ${role}`, "aria-label": ROLES[role] }, head, words), words];
}

function chatSettings(state, surface, isChat) {
  const fields = surface.sampling.map((name) => {
    const [title, attributes] = FIELDS[name];
    const field = element("input", { ...attributes, placeholder: surface.suggested[name] ?? "the model's", "data-setting": name });
    field.value = state.settings[name] ?? "";
    field.addEventListener("input", () => {
      delete state.settings[name];
      if (field.value !== "") {
        state.settings[name] = Number(field.value);
      }
    });
    return element("label", {}, `${title} `, field);
  });
  const system = element("textarea", { rows: 2, "aria-label": "System prompt", "data-setting": "system" });
  system.value = state.system;
  system.addEventListener("input", () => { state.system = system.value; });
  const parts = [...(isChat ? [element("label", {}, "System prompt", system)] : []),
    ...(fields.length ? [element("div", { class: "fields" }, ...fields)] : [])];
  return parts.length ? element("details", {}, element("summary", {}, "Settings"), ...parts) : "";
}

// Puts the pieces of a text into the page, all that have come within a frame at once.
class TextShower {
  constructor(place, node, shown) {
    Object.assign(this, { place, node, shown, pending: "", timer: 0, at: performance.now() });
  }

  // Returns a promise when the page needs time to be drawn: what comes faster than that waits, in the end at the server.
  add(piece) {
    this.pending += piece;
    this.timer ||= setTimeout(() => this.show(), FRAME);
    if (performance.now() - this.at < FRAME) {
      return null;
    }
    return new Promise((resolve) => setTimeout(() => { this.at = performance.now(); resolve(); }));
  }

  end() {
    clearTimeout(this.timer);
    this.show();
  }

  show() {
    this.timer = 0;
    const follows = this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight < 40;
    this.node.appendData(this.pending);
    this.pending = "";
    if (follows) {
      this.place.scrollTop = this.place.scrollHeight;
    }
    this.shown();
  }
}

// Hands each piece of the text, the count of tokens at the end, and each piece of a thought to `take`, and waits for what
// it returns.
async function generate(path, body, signal, take) {
  const response = await fetchOk(path, { method: "POST", body: JSON.stringify(body), signal });
  let length = 0;
  for await (const [, data] of eventsOf(response)) {
    if (data === "[DONE]") {
      return;
    }
    const { error, choices, usage } = JSON.parse(data);
    if (error) {
      throw new Error(error.message);
    }
    const [choice] = choices;
    const piece = choice ? choice.delta?.content ?? choice.text ?? "" : "";
    const thinking = choice?.delta?.reasoning_content ?? "";
    length += piece.length + thinking.length;
    if (length > MOST_TEXT) {
      throw new Error(`The text is longer than ${MOST_TEXT.toLocaleString("en")} characters, so it was stopped.`);
    }
    await take(piece, usage, thinking);
  }
  throw new Error("The connection has ended before the text.");
}

// When the pieces of a text have come, as a line for people.
class GenerationFigures {
  constructor() {
    this.begun = performance.now();
    this.first = this.last = 0;
    this.pieces = 0;
    this.usage = null;
  }

  count(piece, usage) {
    this.usage = usage || this.usage;
    if (piece) {
      this.last = performance.now();
      this.first ||= this.last;
      this.pieces += 1;
    }
  }

  get text() {
    if (!this.pieces) {
      return "";
    }
    const { prompt_tokens: read, completion_tokens: written } = this.usage || {};
    const [count, unit] = written ? [written, written === 1 ? "token" : "tokens"] : [this.pieces, this.pieces === 1 ? "piece" : "pieces"];
    const seconds = (this.last - this.first) / 1000;
    return [`first token after ${milliseconds(this.first - this.begun)}`,
      `${number(count)} ${unit}`, ...(read ? [`prompt of ${number(read)}`] : []),
      ...(this.pieces > 1 && seconds > 0 ? [`${number((count - 1) / seconds)} ${unit.replace(/s?$/, "s")}/s`] : [])].join(", ");
  }
}
