"""The C files of the compiled form: a change of one module leaves the object files of the others as they are."""

from pathlib import Path

import compiled_form
import pytest

LIBRARY = compiled_form.LIBRARY
HEADER = """#ifndef MYPYC_X_H
#define MYPYC_X_H
#include <Python.h>
extern PyObject *CPyStatics[{count}];
extern PyObject *CPyType_a___A;
char CPyDef_a___f(PyObject *cpy_r_self);
#endif
"""
GLOBALS = """#include "__native_internal_modserve_compiled.h"

int CPyGlobalsInit(void)
{{
    static int is_initialized = 0;
    if (is_initialized) return 0;
    is_initialized = 1;
    return 0;
}}
PyObject *CPyStatics[{count}];
"""
TUPLE = """#ifndef MYPYC_DECLARED_{0}
#define MYPYC_DECLARED_{0}
typedef struct {0} {{
    {1} f0;
}} {0};
#endif

"""
STRUCT = """typedef struct {{
    PyObject_HEAD
    {1} _x;
}} {0};
"""


INCLUDES = '#include "__native_modserve_compiled.h"\n#include "__native_internal_modserve_compiled.h"\n'


def c_files(folder: Path, a: str, b: str, count: int) -> dict[str, str]:
    """C files of two modules, once each has its own literals."""
    folder.mkdir()
    (folder / f"__native_internal_{LIBRARY}.h").write_text(HEADER.format(count=count))
    (folder / f"__native_{LIBRARY}.c").write_text(GLOBALS.format(count=count))
    (folder / "__native_a.c").write_text(INCLUDES + a)
    (folder / "__native_b.c").write_text(INCLUDES + b)
    compiled_form.divide_literals(folder)
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_new_literal_of_one_module_leaves_the_others_as_they_are(tmp_path: Path) -> None:
    a = "    r0 = CPyStatics[3]; /* 'one' */\n"
    before = c_files(tmp_path / "before", a, "    r0 = CPyStatics[4]; /* 'two' */\n", 5)
    a += "    r1 = CPyStatics[4]; /* 'new' */\n"
    after = c_files(tmp_path / "after", a, "    r0 = CPyStatics[5]; /* 'two' */\n", 6)
    changed = {name for name, text in after.items() if text != before[name]}
    assert changed == {"__native_a.c", f"__native_{LIBRARY}.c"}


def test_each_literal_gets_what_the_array_has_for_it(tmp_path: Path) -> None:
    lines = "    r0 = CPyStatics[3];\n    r1 = CPyStatics[1];\n    r2 = CPyStatics[3];\n"
    files = c_files(tmp_path / "c", lines, "", 5)
    lines = "    r0 = __native_a_literals[0];\n    r1 = __native_a_literals[1];\n    r2 = __native_a_literals[0];\n"
    assert files["__native_a.c"] == f"{INCLUDES}PyObject *__native_a_literals[2];\n{lines}"
    assert files["__native_b.c"] == INCLUDES, "it has none"
    text = files[f"__native_{LIBRARY}.c"]
    assert "extern PyObject *__native_a_literals[2];\n" in text
    assert "static const int __native_a_literals_places[] = {3,1};\n" in text
    copied = "for (int n = 0; n < 2; n++) __native_a_literals[n] = CPyStatics[__native_a_literals_places[n]];\n"
    assert f"    {copied}    is_initialized = 1;\n" in text
    assert "PyObject *CPyStatics[5];\n" in text


def test_code_of_another_mypyc_stays_as_it_is(tmp_path: Path) -> None:
    line = "    r0 = CPyStatics[3];\n"
    (tmp_path / f"__native_{LIBRARY}.c").write_text("int CPyGlobalsInit(void);\n")
    (tmp_path / "__native_a.c").write_text(line)
    compiled_form.divide_literals(tmp_path)
    assert (tmp_path / "__native_a.c").read_text() == line


@pytest.mark.parametrize(
    ("used", "other"),
    [
        ("extern PyObject *{0};\n", "extern CPyModule *{0};\n"),
        ("char {0}(PyObject *x);\n", "char {0}(PyObject *x, char y);\n"),
        ("extern PyObject *{0}[4];\n", "extern PyObject *{0}[5];\n"),
        (STRUCT.replace("{1}", "char"), STRUCT.replace("{1}", "double")),
        (TUPLE.replace("{1}", "char"), TUPLE.replace("{1}", "double")),
    ],
    ids=["variable", "function", "array", "struct", "tuple"],
)
def test_only_files_that_use_a_declaration_are_compiled_again(used: str, other: str) -> None:
    function = "PyObject *CPyDef_g(NAME *x);\n"
    before, after = (
        compiled_form.declarations_used("#include <Python.h>\n" + text.format("NAME") + function)
        for text in (used, other)
    )
    for source in ("NAME(x);", "NAME *x;", "CPyDef_g(x);"):
        assert before(source) != after(source)
    assert before("    OTHER(x);") == after("    OTHER(x);")


def test_what_is_no_declaration_is_used_by_all() -> None:
    before, after = (compiled_form.declarations_used(f"#define N {n}\nextern PyObject *x;\n") for n in (1, 2))
    assert before("y") != after("y")
