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
from figures import matrix


configfile: "config/config.yaml"


try:
    matrix.check(config)
    DEVICES = {name: device.load(name) for name in config["devices"]}
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


wildcard_constraints:
    device="|".join(DEVICES),
    processor="cpu|gpu",
    engine="|".join(ENGINES),
    model="|".join(config["models"]),
    figure="|".join(matrix.figures()),


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
        "results/samples/{model}.npz",
    log:
        "results/logs/sample/{model}.log",
    params:
        variant=config["variant"],
        number=config["protocol"]["samples"],
        seed=config["protocol"]["seed"],
        selection="--random" if config["protocol"]["selection"] == "random" else "",
        code=digest("datasets/*"),
    shell:
        "python datasets/sample.py {wildcards.model} {output} --variant {params.variant}"
        " --count {params.number} --seed {params.seed} {params.selection} 2>&1 | tee {log}"


rule reference:
    """Unpack the samples and compute the outputs that every engine's are compared with."""
    input:
        model="results/models/{model}.onnx",
        samples="results/samples/{model}.npz",
    output:
        directory("results/samples/{model}"),
    log:
        "results/logs/reference/{model}.log",
    params:
        protocol=json.dumps(config["protocol"], sort_keys=True),
        code=fingerprint("ort"),
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
        code=lambda w: fingerprint(ENGINES[w.engine]["adapter"]),
    shell:
        "python -m baselines build {wildcards.engine} {input.model} {output} --adapter {params.adapter}"
        " --options {params.options:q} --device {wildcards.device} --processor {wildcards.processor} 2>&1 | tee {log}"


rule measure:
    """Measure all engines on one model, interleaved: every sample, every round, one row each."""
    input:
        samples="results/samples/{model}",
        bundles=expand(
            "results/bundles/{{device}}/{{processor}}/{engine}/{{model}}",
            engine=ENGINES,
        ),
    output:
        "results/runs/{device}/{processor}/{model}.jsonl",
    log:
        "results/logs/measure/{device}/{processor}/{model}.log",
    # Takes the whole machine, so that no build runs beside it; says nothing about the threads of an engine.
    threads: lambda w: workflow.cores if DEVICES[w.device].exclusive else 1
    resources:
        **{
            f"device_{name}": (lambda w, name=name: int(w.device == name))
            for name in DEVICES
        },
    params:
        variant=config["variant"],
        protocol=json.dumps(config["protocol"], sort_keys=True),
        threads=lambda w: DEVICES[w.device].threads,
        code=digest(
            "baselines/measure.py",
            "baselines/session.py",
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
        rows=lambda w: matrix.runs(config, w.figure),
        models=matrix.model_files(config),
    output:
        pdf="figures/{figure}.pdf",
        csv="figures/{figure}.csv",
        markdown="figures/{figure}.md",
    log:
        "results/logs/draw/{figure}.log",
    params:
        config=json.dumps(config, sort_keys=True),
        code=digest("figures/*.py", "figures/paper*.csv"),
    shell:
        "python -m figures {wildcards.figure} --config {params.config:q} --out figures/{wildcards.figure}"
        " --rows {input.rows} 2>&1 | tee {log}"
