"""The evaluation: models -> samples, bundles -> rows -> tables. `snakemake --cores 8 figures/table6.pdf`, or `all`.

`--cores` schedules the building and nothing else: measurements run one at a time on a device, with the threads that
the device's file says. The folder `config/` says what is measured; docs/harness.md says how to add to it.
"""

import json
import os
import shlex
import sys

from baselines.engine import digest, fingerprint
from devices import device
from figures import matrix, targets


configfile: "config/config.yaml"


try:
    matrix.check(config)
    DEVICES = {
        name: device.load(name, config["protocol"]["cores"])
        for name in config["devices"]
    }
except (matrix.ConfigError, device.DeviceError) as error:
    sys.exit(f"error: {error}")

ENGINES = config["engines"]

# Rules call the Python that runs snakemake, also where its environment was not activated.
shell.prefix(
    f"set -euo pipefail; export PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH; "
)


# The linter asks for one; nothing here needs a container to run.
container: "docker://python:3.11"


# A measurement shared with another job is no measurement: one job per device at a time. Declared here and not in a
# profile, because a resource without a limit limits nothing.
for name in DEVICES:
    workflow.register_resource(f"device_{name}", 1)


# On a cluster (profiles/slurm) these run on the submitting host, where the devices are.
localrules:
    all,
    measure,
    draw,
    unknown,


wildcard_constraints:
    **{kind: "|".join(names) for kind, names in targets.names(config).items()},
    stray=targets.strays(config),


def rows(wildcards):
    """The files of rows that a figure is drawn from; ends the run with a sentence when it cannot be drawn."""
    try:
        return matrix.runs(config, wildcards.figure)
    except matrix.ConfigError as error:
        sys.exit(f"error: {error}")


onstart:
    matrix.hold_workflow()


rule all:
    """Every figure of the configuration."""
    input:
        expand("figures/{figure}.pdf", figure=config["figures"]),


rule export:
    """Build a model as ONNX."""
    output:
        "results/models/{model}.onnx",
    log:
        "results/logs/export/{model}.log",
    params:
        variant=config["variant"],
        code=digest("models/*.py", "models/calibration/*"),
    shell:
        "python -m models export {wildcards.model} {output} --variant {params.variant} 2>&1 | tee {log}"


rule sample:
    """Draw the inputs of a model, by fixed seed."""
    input:
        model="results/models/{model}.onnx",
    output:
        "results/samples/{selection}/{model}.npz",
    log:
        "results/logs/sample/{selection}/{model}.log",
    params:
        variant=config["variant"],
        seed=config["protocol"]["seed"],
        selection=lambda w: matrix.sampling(config, w.selection),
        data=lambda w: matrix.own_data(config, w.model),
        code=digest("datasets/*"),
    shell:
        "python datasets/sample.py {wildcards.model} {output} --variant {params.variant}"
        " --seed {params.seed} {params.selection} {params.data:q} 2>&1 | tee {log}"


rule reference:
    """Unpack the samples and compute the outputs that every engine's are compared with."""
    input:
        model="results/models/{model}.onnx",
        samples="results/samples/{selection}/{model}.npz",
    output:
        directory("results/samples/{selection}/{model}"),
    log:
        "results/logs/reference/{selection}/{model}.log",
    params:
        protocol=lambda w: json.dumps(
            matrix.protocol(config, w.selection), sort_keys=True
        ),
        code=fingerprint("ort") + digest("baselines/paths.py", "models/gates.py"),
    shell:
        "python -m baselines reference {input.model} {input.samples} {output}"
        " --protocol {params.protocol:q} 2>&1 | tee {log}"


rule build:
    """Make the bundle of one engine for one model."""
    input:
        model="results/models/{model}.onnx",
    output:
        directory("results/bundles/{device}/{processor}/{engine}/{model}"),
    log:
        "results/logs/build/{device}/{processor}/{engine}/{model}.log",
    params:
        adapter=lambda w: ENGINES[w.engine]["adapter"],
        options=lambda w: json.dumps(ENGINES[w.engine]["options"], sort_keys=True),
        cores=config["protocol"]["cores"],
        code=lambda w: fingerprint(ENGINES[w.engine]["adapter"])
        + digest(f"devices/{w.device}.yaml"),
    shell:
        "python -m baselines build {wildcards.engine} {input.model} {output} --adapter {params.adapter}"
        " --options {params.options:q} --device {wildcards.device} --processor {wildcards.processor}"
        " --cores {params.cores} 2>&1 | tee {log}"


rule measure:
    """Measure all engines on one model, interleaved: every sample, every round, one row each."""
    input:
        samples="results/samples/{selection}/{model}",
        bundles=expand(
            "results/bundles/{{device}}/{{processor}}/{engine}/{{model}}",
            engine=ENGINES,
        ),
    output:
        "results/runs/{device}/{processor}/{selection}/{model}.jsonl",
    log:
        "results/logs/measure/{device}/{processor}/{selection}/{model}.log",
    # Takes the whole machine, so that no build runs beside it; says nothing about the threads of an engine.
    threads: lambda w: workflow.cores if DEVICES[w.device].exclusive else 1
    resources:
        **{
            f"device_{name}": (lambda w, name=name: int(w.device == name))
            for name in DEVICES
        },
    params:
        variant=config["variant"],
        protocol=lambda w: json.dumps(
            matrix.protocol(config, w.selection), sort_keys=True
        ),
        threads=lambda w: DEVICES[w.device].threads,
        code=digest(
            "baselines/measure.py",
            "baselines/session.py",
            "baselines/phone_program.py",
            "baselines/tvm_rpc.py",
            "baselines/paths.py",
            "baselines/reference.py",
            "baselines/rows.py",
            "devices/*",
        ),
    shell:
        "python -m baselines measure {input.bundles} --samples {input.samples} --out {output}"
        " --device {wildcards.device} --processor {wildcards.processor} --model {wildcards.model}"
        " --variant {params.variant} --protocol {params.protocol:q} 2>&1 | tee {log}"


rule draw:
    """Draw a table or figure from rows."""
    input:
        rows=rows,
        models=lambda w: matrix.model_files(config, w.figure),
    output:
        pdf="figures/{figure}.pdf",
        csv="figures/{figure}.csv",
        markdown="figures/{figure}.md",
    log:
        "results/logs/draw/{figure}.log",
    params:
        config=json.dumps(config),  # in its order, which is that of the engines
        code=digest("figures/*.py", "figures/paper*.csv"),
    shell:
        "python -m figures {wildcards.figure} --config {params.config:q} --out figures/{wildcards.figure}"
        " --rows {input.rows} 2>&1 | tee {log}"


def explained(wildcards):
    """End the run with what is wrong with a target."""
    sys.exit(f"error: {targets.explain(config, wildcards.stray)}")


rule unknown:
    """A file that no other rule makes."""
    input:
        explained,
    output:
        "{stray}",
