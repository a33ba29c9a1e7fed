#!/usr/bin/env python3
"""What sass.py reads in a disassembly, on lines of the kind that nvdisasm prints."""
import unittest

import sass


def code_of(text: str) -> list:
    """Instructions of a kernel, one a line, as nvdisasm prints them."""
    lines = ["//--------------------- .text.k                   --------------------------"]
    for number, line in enumerate(text.strip().splitlines()):
        line = line.strip()
        lines.append(line if line.endswith(":") else f"        /*{number * 16:04x}*/                   {line} ;")
    return sass.read_cubin("\n".join(lines))["k"]["code"]


class Flight(unittest.TestCase):
    def in_flight(self, text: str) -> tuple:
        return sass.loads_in_flight(code_of(text))

    def test_loads_that_wait_for_stores_are_one_at_a_time(self):
        self.assertEqual(self.in_flight("""
            LDG.E.128 R4, desc[UR4][R2.64]
            STG.E.128 desc[UR4][R8.64], R4
            @!P0 LDG.E.128 R12, desc[UR4][R2.64+0x10]
            STG.E.128 desc[UR4][R8.64+0x10], R12
            EXIT"""), (1, 16))

    def test_loads_that_come_first_are_under_way_together(self):
        self.assertEqual(self.in_flight("""
            LDG.E.128 R4, desc[UR4][R2.64]
            LDG.E.EF.64 R12, desc[UR4][R2.64+0x10]
            LDG.E.U16 R14, desc[UR4][R2.64+0x18]
            FADD R7, R7, R12
            STG.E.128 desc[UR4][R8.64], R4
            EXIT"""), (3, 26))

    def test_any_register_of_a_load_waits_for_it_and_for_older_ones(self):
        self.assertEqual(self.in_flight("""
            LDG.E.128 R4, desc[UR4][R2.64]
            LDG.E.128 R12, desc[UR4][R2.64]
            PRMT R20, R15.reuse, 0x7610, R20
            LDG.E R24, desc[UR4][R2.64]
            EXIT"""), (2, 32))

    def test_a_prefetch_is_under_way_in_the_next_turn_of_the_loop(self):
        loop = """
            LDG.E R12, desc[UR4][R2.64]
            .L_x_1:
            LDG.E.128 R8, desc[UR4][R2.64]
            LDG.E.128 R16, desc[UR4][R2.64]
            FADD R20, R8, R16
            LDG.E.128 R12, desc[UR4][R2.64]
            {}
            @P0 BRA `(.L_x_1)
            EXIT"""
        self.assertEqual(self.in_flight(loop.format("FADD R20, R12, R20")), (2, 32))
        self.assertEqual(self.in_flight(loop.format("NOP")), (3, 48))

    def test_a_tail_of_single_elements_is_not_the_main_loop(self):
        self.assertEqual(self.in_flight("""
            LDG.E.128 R4, desc[UR4][R2.64]
            LDG.E.128 R8, desc[UR4][R2.64]
            STG.E.128 desc[UR4][R8.64], R4
            EXIT
            .L_x_1:
            LDG.E.U16 R4, desc[UR4][R2.64]
            STG.E.U16 desc[UR4][R8.64], R4
            @P0 BRA `(.L_x_1)
            EXIT"""), (2, 32))

    def test_asynchronous_copies_wait_for_their_group(self):
        self.assertEqual(self.in_flight("""
            LDGSTS.E.BYPASS.128 [R4], desc[UR4][R2.64]
            LDGDEPBAR
            LDGSTS.E.BYPASS.128 [R4+0x10], desc[UR4][R2.64]
            LDGDEPBAR
            DEPBAR.LE SB0, 0x1
            LDGSTS.E.BYPASS.128 [R4+0x20], desc[UR4][R2.64]
            DEPBAR.LE SB0, 0x0
            LDGSTS.E.BYPASS.128 [R4+0x20], desc[UR4][R2.64]
            EXIT"""), (2, 32))


class Sources(unittest.TestCase):
    def test_a_kernel_is_named_by_the_file_that_its_code_is_of(self):
        name = "_ZN7tessera4cuda52_GLOBAL__N__ce2c436c_10_group_0_cu_75007245k_anyEf"
        kernels = sass.read_cubin(f"""
//--------------------- .text.{name} --------------------------
        //## File "/src/kernels/src/cuda/elementwise_cuda.h", line 66
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        //## File "/src/kernels/src/cuda/simt.h", line 20 inlined at "/src/kernels/src/cuda/sums_cuda.cu", line 3
        /*0010*/                   EXIT ;""")
        self.assertEqual(kernels[name]["source"], "sums")
        self.assertRegex(sass.short_names(kernels)[name], "^sums/")


class Residency(unittest.TestCase):
    def test_registers_shared_memory_threads_and_blocks_limit_it(self):
        self.assertEqual(sass.blocks_per_sm(64, 18 << 10, 128), 8)
        self.assertEqual(sass.blocks_per_sm(72, 18 << 10, 128), 7)
        self.assertEqual(sass.blocks_per_sm(32, 100512, 512), 2)
        self.assertEqual(sass.blocks_per_sm(16, 0, 1024), 2)
        self.assertEqual(sass.blocks_per_sm(16, 0, 32), 32)

    def test_bandwidth_follows_from_what_is_under_way(self):
        self.assertEqual(sass.bandwidth_share(1 << 20), 1.0)
        self.assertLess(sass.bandwidth_share(8 << 10), 0.4)


class Table(unittest.TestCase):
    EMPTY = {"launches": [], "spills": [], "excluded": []}

    def test_a_difference_is_told_as_old_and_new(self):
        self.assertEqual(sass.differences({"a": {"registers": 30}, "b": {}}, {"a": {"registers": 32}, "c": {}}),
                         ["a: registers 30 -> 32", "b: is gone", "c: is new: {}"])
        self.assertEqual(sass.differences({"a": {"registers": 30}}, {"a": {"registers": 30}}), [])

    def test_spills_must_be_named_and_names_must_fit(self):
        kernels = {"a<8>": {"spill_bytes": 16}}
        self.assertEqual(len(sass.faults(kernels, self.EMPTY)), 1)
        for allowed, faults in ((8, 1), (16, 0)):
            table = self.EMPTY | {"spills": [{"kernel": "^a<", "bytes": allowed}]}
            self.assertEqual(len(sass.faults(kernels, table)), faults)
        self.assertEqual(len(sass.faults({}, table)), 1)

    def test_the_table_here_can_be_read_and_written(self):
        table = sass.load_table()
        for row in table["kernels"].values():
            self.assertIn(row["predicted_bandwidth_share"],
                          (None, sass.bandwidth_share(row["bytes_in_flight_per_sm"])))


if __name__ == "__main__":
    unittest.main()
