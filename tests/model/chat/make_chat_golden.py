"""Writes golden.json: what transformers renders of chats by the templates of this folder, which
characters assistants have written, and which tokens of which tokenizer those are.

The templates are our own, in the manner of those that the models of each family are published with.
Needs transformers, jinja2 and tokenizers: python3 make_chat_golden.py
"""

import datetime
import json
import pathlib

import transformers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent
TOKENIZERS = HERE.parent / "tokenizers"
TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


class FixedDate(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 7, 4, 15, 30)


chat_template_utils.datetime = FixedDate

TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Weather \"now\" in a place.", "parameters": {"type": "object", "properties": {"place": {"type": "string"}, "days": {"type": "integer", "minimum": 1}}, "required": ["place"]}, "return": {"type": "string"}}},
    {"type": "function", "function": {"name": "time", "description": "Zeit in <Zürich>", "parameters": {"type": "object", "properties": {}}}},
]


def says(role, content, **more):
    return {"role": role, "content": content, **more}


CHATS = {
    "one": [says("user", "Hello, who are you?")],
    "two": [says("user", " What is 2 + 2?\n"), says("assistant", "It is 4.\n\nReally.")],
    "system": [says("system", "You are brief. "), says("user", "Name a colour."), says("assistant", "Blau, bleu, 青い."), says("user", "Another one?"), says("assistant", "Grün 🟢")],
    "thinking": [says("user", "1+1?"), says("assistant", "<think>\nadd them\n</think>\n\n2"), says("user", "And 2+2?"), says("assistant", "<think>\nagain\n</think>\n\n4")],
    "call": [says("system", "Use tools."), says("user", "Is it warm?"), says("assistant", "", tool_calls=[{"id": "abc123def", "type": "function", "function": {"name": "weather", "arguments": {"place": "Zürich", "days": 2, "x": [1.5, None, True]}}}]), says("tool", "{\"degrees\": 21}"), says("assistant", "21 degrees.")],
    "twice": [says("user", "a"), says("user", "b")],
    "parts": [says("system", [{"type": "text", "text": "In parts."}]), says("user", [{"type": "image"}, {"type": "text", "text": " Look. "}]), says("assistant", [{"type": "text", "text": "Seen."}])],
    "empty": [says("user", ""), says("assistant", "")],
}


def render(template, messages, tools, variables, prompt):
    try:
        texts, written = chat_template_utils.render_jinja_template(
            conversations=[messages], tools=tools, chat_template=template, add_generation_prompt=prompt,
            return_assistant_tokens_mask=True, **{**TOKENS, **variables})
    except Exception as error:
        return {"error": type(error).__name__}
    return {"text": texts[0], "written": [list(span) for span in written[0]]}


def main():
    cases = []
    for file in sorted(HERE.glob("*.jinja")):
        for name, messages in CHATS.items():
            for tools in (None, TOOLS):
                for variables in ({}, {"enable_thinking": False, "date_string": "5 May 2025"}):
                    if tools and name not in ("call", "one"):
                        continue
                    if variables and name != "one":
                        continue
                    if file.stem == "language" and name != "system":
                        continue
                    for prompt in (False, True):
                        case = {"template": file.name, "messages": messages, "tools": tools, "variables": variables, "add_generation_prompt": prompt}
                        cases.append({**case, **render(file.read_text(), messages, tools, variables, prompt)})
    masks = []
    for tokenizer in ("gpt2", "llama3", "qwen", "llama2", "phi3"):
        fast = PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZERS / f"{tokenizer}.json"), **TOKENS)
        for name in ("two", "system", "empty"):
            made = fast.apply_chat_template(CHATS[name], chat_template=(HERE / "marked.jinja").read_text(), tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
            masks.append({"tokenizer": f"{tokenizer}.json", "template": "marked.jinja", "messages": CHATS[name], "tokens": list(made["input_ids"]), "assistant": list(made["assistant_masks"])})
    golden = {"transformers": transformers.__version__, "special_tokens": TOKENS, "renderings": cases, "masks": masks}
    (HERE / "golden.json").write_text(json.dumps(golden, ensure_ascii=True, indent=0) + "\n")
    print(len(cases), "renderings,", sum("error" in c for c in cases), "errors,", len(masks), "masks")


if __name__ == "__main__":
    main()
