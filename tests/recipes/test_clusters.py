"""What docs/en/hand-over.md says to Kubernetes and to Slurm, without either."""

import os
import subprocess
import urllib.request

import pytest
import yaml
from pages import activated_environment, block_with
from started import service
from tiny_embedding import write_files
from tiny_search import write_exports

SRUN = """#!/bin/sh
: >step.log
"$@" >>step.log 2>&1 &
until grep -q 'train step' step.log; do kill -0 $! || break; sleep 0.1; done
kill -TERM $!
wait $!
code=$?
cat step.log
exit $code
"""  # Slurm's signal comes after the first steps


def test_the_deployment_names_what_the_service_has(tmp_path):
    deployment, scaler = yaml.safe_load_all(block_with("hand over Kubernetes").text)
    template = deployment["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert template["metadata"]["labels"] == deployment["spec"]["selector"]["matchLabels"]
    words = container["command"]
    port = int(words[words.index("--port") + 1])
    assert words[:2] == ["ernie-pair", "serve"] and container["ports"] == [{"containerPort": port}]
    model = write_exports(tmp_path) / "ship"
    started = [str(model) if word == "/model" else word for word in words[2:]]
    started[started.index("--host") + 1] = "127.0.0.1"
    del started[started.index("--port") : started.index("--port") + 2]
    probes = [container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "readiness", "liveness")]
    with service(*started) as address:
        for probe in probes:
            request = urllib.request.Request(address + probe["path"], headers={"Host": "10.1.2.3:8000"})
            with urllib.request.urlopen(request) as answer:
                assert answer.status == 200 and probe["port"] == port
        with urllib.request.urlopen(f"{address}/metrics") as answer:
            metrics = answer.read().decode()
    (metric,) = scaler["spec"]["metrics"]
    assert f"\n{metric['pods']['metric']['name']} 0.0\n" in metrics
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]


@pytest.mark.timeout(300)
def test_a_job_of_slurm_saves_is_requeued_and_resumes(tmp_path):
    write_files(tmp_path)
    for name, text in {"srun": SRUN, "scontrol": '#!/bin/sh\necho "$@" >>requeued\n'}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = block_with("hand over Slurm").text
    assert "--signal=TERM" in script and "--requeue" in script
    tiny = "output/slurm --model_type ernie --from_scratch true --epochs 500 --batch_size 4 --device cpu"
    for old, new in {"ernie-gram-zh": "model", "output/slurm": tiny}.items():
        assert script.count(old) == 1
        script = script.replace(old, new)
    own = activated_environment()
    environment = {**own, "PATH": f"{tmp_path}{os.pathsep}{own['PATH']}", "SLURM_JOB_ID": "17"}
    said = [
        subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True)
        for _ in range(2)
    ]
    assert [run.returncode for run in said] == [0, 0], said
    assert (tmp_path / "requeued").read_text() == "requeue 17\n" * 2
    first, second = (run.stdout for run in said)
    assert "resume" not in first and "resume" in second, second
