"""Writes the tables of arrow_records_test.cpp, and the same rows as .jsonl, by pyarrow 26.

pip install pyarrow==26.0.1 && python3 tests/model/tables/make_tables.py
"""

import json
import pathlib

import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet

HERE = pathlib.Path(__file__).parent


def lines(name, rows):
    (HERE / name).write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


prompts = [{"prompt": f"Question {i}: ", "completion": "ab" * (i % 5 + 1) + " ünd 青い"} for i in range(23)]
lines("prompts.jsonl", prompts)
table = pa.table({
    "id": pa.array(range(23)),
    "completion": pa.array([row["completion"] for row in prompts], pa.large_string()),
    "prompt": pa.array([row["prompt"] for row in prompts]).dictionary_encode(),
    "text": pa.array([None] * 23, pa.string()),
})
pa.parquet.write_table(table, HERE / "prompts.parquet", row_group_size=7, compression="snappy")

texts = [{"text": f"Text {i}. " + "x" * i} for i in range(40)]
lines("texts.jsonl", texts)
table = pa.table({"text": pa.chunked_array([[row["text"] for row in texts[a:b]] for a, b in [(0, 1), (1, 13), (13, 40)]]),
                  "score": pa.array([0.5] * 40)})
with pa.ipc.new_file(HERE / "file.arrow", table.schema) as writer:
    writer.write_table(table)
with pa.ipc.new_stream(HERE / "stream.arrow", table.schema) as writer:
    writer.write_table(table)
with pa.ipc.new_file(HERE / "compressed.feather", table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
    writer.write_table(table)

messages = [{"messages": [{"role": "user", "content": f"How much is {i} + 1?"},
                          {"role": "assistant", "content": str(i + 1)}]
             + ([{"role": "user", "content": "Sure?"}, {"role": "assistant", "content": "Yes."}] if i % 3 == 0 else [])}
            for i in range(11)]
lines("messages.jsonl", messages)
kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
pa.parquet.write_table(pa.table({"messages": pa.array([row["messages"] for row in messages], kind)}),
                       HERE / "messages.parquet", compression="gzip")

pa.parquet.write_table(pa.table({"question": ["a"], "answer": ["b"]}), HERE / "columns.parquet")
pa.parquet.write_table(pa.table({"text": pa.array(["first", None, "third"])}), HERE / "missing.parquet")
pa.parquet.write_table(pa.table({"text": pa.array([b"first"], pa.binary())}), HERE / "binary.parquet")
