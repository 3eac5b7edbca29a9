"""Write files of tests/golden with the results of the real Fluid.

Run with the real Fluid's interpreter from the project's root:

    python -m tests.oracle.golden NAME ...    files by name, without .json
    python -m tests.oracle.golden             all files of this module

Modules of tests/parity have the cases. Further scripts of this folder write the other files of tests/golden.
"""

import importlib
import json
import os
import sys

import numpy as np
import paddle.fluid as fluid

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
FILES = {}


def writes(name, pretty=True, **options):
    """Register a function that returns the content of a file.

    Args:
        pretty: True for a line for each entry.
        options: of `json.dump` otherwise.
    """

    def register(make):
        FILES[name] = make, pretty, options
        return make

    return register


def rounded(value, digits=7):
    """The value with numbers of so many digits; nine tell a 32-bit float."""
    if isinstance(value, dict):
        return {k: rounded(v, digits) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(v, digits) for v in value]
    return float("%.*g" % (digits, value)) if isinstance(value, (float, np.floating)) else value


def short_values(found):
    """Results by variable, [values, shape, lod], with values of seven digits."""
    return {n: [[float("%.7g" % x) for x in v], s, lod] for n, (v, s, lod) in found.items()}


def parity(name):
    return importlib.import_module("tests.parity." + name)


def operators(cases, run):
    """Results of single operators. Those that Fluid cannot run are printed and left out."""
    result = {}
    for case in cases:
        name = case.name if hasattr(case, "name") else case[0]
        try:
            result[name] = short_values(run(fluid, case))
        except Exception as error:
            print(name, str(error)[-300:])
    print(len(result), "of", len(cases))
    return result


def operator_file(file, module, runner="ops"):
    writes(file)(lambda: operators(parity(module).CASES, parity(runner).run))


operator_file("boxes", "boxes")
operator_file("declared", "declared_cases", "declared")
operator_file("fused_ops", "fused")
operator_file("ragged_ops", "ops")
operator_file("text_ops", "text_ops")
writes("arguments")(lambda: parity("arguments").probe(fluid))
writes("deformable")(lambda: parity("deformable").train(fluid))
writes("fed_dtypes")(lambda: rounded(parity("fed_dtypes").results(fluid), 16))
writes("scope_rows")(lambda: rounded({n: parity("scope_rows").run(fluid, n) for n in parity("scope_rows").CASES}))
writes("faster_rcnn")(lambda: parity("faster_rcnn").train(fluid))
writes("ssd")(lambda: parity("ssd").train_and_detect(fluid))
writes("retrieval", False)(lambda: parity("retrieval").run(fluid))
writes("rounding", False, indent=1)(
    lambda: {net: parity("rounding").errors(fluid, net) for net in parity("rounding").NETS}
)
for file in ("feeding", "lod_tensor"):
    writes(file)(lambda file=file: {case: parity(file).run(fluid, case) for case in parity(file).CASES})


@writes("control")
def control():
    of = parity("control")
    return {
        b.__name__: [[[float("%.7g" % x) for x in v], s, lod] for v, s, lod in of.run(fluid, b)] for b in of.PROGRAMS
    }


@writes("detectors")
def detectors():
    of = parity("detectors")
    return rounded({name: of.train_and_detect(fluid, model) for name, model in of.MODELS.items()})


@writes("names", False, separators=(",", ":"))
def names():
    of = parity("names")
    return {name: of.names(fluid, build) for name, build in of.PROGRAMS.items()}


@writes("parallel")
def parallel():
    of, result = parity("parallel"), {}
    for case in sorted(of.CASES):
        for reduce in (False, True):
            try:
                losses, _ = of.train(fluid, case, 2, reduce)
            except Exception as error:  # Fluid cannot run it
                print(case, reduce, str(error).strip().splitlines()[-1][:100])
                continue
            result["%s_%s" % (case, "reduce" if reduce else "allreduce")] = rounded(losses)
    return result


@writes("parameter_server")
def parameter_server():
    from paddle.fluid.transpiler.geo_sgd_transpiler import GeoSgdTranspiler

    of = parity("parameter_server")
    fluid.transpiler.GeoSgdTranspiler = GeoSgdTranspiler
    return {of.key(case): of.run(fluid, case) for case in of.CASES}


def trained(builds, **options):
    result = {}
    for build in builds:
        losses, norms = parity("programs").train(fluid, build, **options)
        result[build.__name__] = {"losses": losses, "persistables": norms}
    return result


@writes("parity")
def programs():
    translated, infer = parity("translation"), parity("programs").infer
    result = trained(parity("programs").PROGRAMS + parity("ragged").PROGRAMS)
    result["translation_decode"] = infer(fluid, translated.translation_decode, None)
    result["translation_decode_trained"] = infer(fluid, translated.translation_decode_trained, translated.translation)
    return result


@writes("text_programs")
def text_programs():
    of = parity("text")
    result = trained(of.PROGRAMS, steps=of.STEPS)
    result.update((build.__name__, parity("programs").infer(fluid, build)) for build in of.INFERENCE)
    return result


@writes("shape_streams", False)
def shape_streams():
    of = parity("shape_streams")
    return {build.__name__: of.run(fluid, build) for build in of.STREAMS}


@writes("slim", False, separators=(",", ":"))
def slim():
    of = parity("slim")
    return {
        "pruned": of.pruned(fluid),
        "distilled": {kind: of.distilled(fluid, kind) for kind in ("l2", "fsp", "soft")},
        "quantized": {" ".join(kinds): of.quantized(fluid, *kinds) for kinds in of.KINDS},
    }


@writes("sparse")
def sparse():
    result = {}
    for name in parity("sparse").VARIANTS:
        losses, values = parity("sparse").train(fluid, name)
        result[name] = {"losses": losses, "table": [[float("%.7g" % v) for v in row] for row in values]}
    return result


@writes("optimizer", False, separators=(",", ":"))
def optimizer():
    cases = importlib.import_module("tests.optimizer.cases")
    result = {"optimizers": {}, "schedules": {}, "averages": {}}
    for name, make in cases.optimizers(fluid).items():
        main, startup, loss, made = cases.build(fluid, name, make)
        losses, scope = cases.train(fluid, main, startup, loss)
        result["optimizers"][name] = {
            "losses": losses,
            "state": cases.state(main, scope),
            "names": made.get_opti_var_name_list(),
            "operators": cases.describe(main, 2 | 16),
        }
    for name, make in cases.schedules(fluid).items():
        main, startup, rate = cases.schedule_program(fluid, make)
        result["schedules"][name] = {
            "name": rate.name,
            "rates": cases.rates(fluid, main, startup, rate),
            "operators": cases.describe(main, 16),
        }
    for name, make in cases.averages(fluid).items():
        result["averages"][name] = cases.average(fluid, make)
    main, startup, loss, _ = cases.build(fluid, "lookahead", cases.lookahead(fluid))
    losses, scope = cases.train(fluid, main, startup, loss)
    result["lookahead"] = {"losses": losses, "state": cases.state(main, scope)}
    return rounded(result, 9)


@writes("dygraph_layers", False, separators=(",", ":"))
def dygraph_layers():
    of = importlib.import_module("tests.dygraph.layer_cases")
    programs, values = of.cases(fluid), of.value_cases(fluid)
    return {
        "programs": {name: of.describe(*of.program_of(fluid, make, data)) for name, (make, data) in programs.items()},
        "values": {name: rounded(of.values(fluid, name, make, data), 9) for name, (make, data) in values.items()},
    }


@writes("dygraph_optimizer", False, separators=(",", ":"))
def dygraph_optimizer():
    """Writes the files of a layer and its optimizer, too."""
    cases = importlib.import_module("tests.dygraph.optimizer_cases")
    optimizers, net_file = cases.optimizers(fluid), os.path.join(FOLDER, "dygraph", "net")
    result = {
        "optimizers": {name: cases.result(fluid, name, make) for name, make in optimizers.items()},
        "rates": cases.rates(fluid),
    }
    with fluid.dygraph.guard():
        net = cases.net_of(fluid)
        made = optimizers["noam"](net.parameters())
        cases.train(fluid, net, made, "noam", 2)
        fluid.save_dygraph(net.state_dict(), net_file)
        fluid.save_dygraph(made.state_dict(), net_file)
        result["resumed"] = cases.train(fluid, net, made, "noam", 2)
    return rounded(result, 9)


@writes("proposals")
def proposals():
    of = parity("proposals")
    return {case[0]: short_values(of.run(fluid, case)) for case in of.CASES}


@writes("converted_texts", indent=1)
def converted_texts():
    of = parity("converted_texts")
    return {name: of.text(fluid, function) for name, function in of.FUNCTIONS.items()}


@writes("proposal_levels", False)
def proposal_levels():
    return {name: parity("proposal_levels").proposals(fluid, name == "padded") for name in ("distinct", "padded")}


if __name__ == "__main__":
    for name in sys.argv[1:] or sorted(FILES):
        make, pretty, options = FILES[name]
        found = make()
        with open(os.path.join(FOLDER, name + ".json"), "w") as f:
            if pretty:
                lines = ["%s: %s" % (json.dumps(k), json.dumps(v, sort_keys=True)) for k, v in sorted(found.items())]
                f.write("{\n" + ",\n".join(lines) + "\n}\n")
            else:
                json.dump(found, f, sort_keys=True, **options)
                f.write("\n")
        print(name, len(found), "entries")
