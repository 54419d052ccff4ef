"""Where the cases of a benchmark run: in this process, in others of this machine, or on a Ray cluster.

Enters: what runs a case, the cases, what was asked for. Leaves: every case as it ends, with what failed. A case writes
its own results, whole or not at all, so that one whose process is lost can run again, here or elsewhere.
"""

from __future__ import annotations

import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tradi.bench.cases import Case, Options
from tradi.bench.declaration import declared
from tradi.extras import require

KILLED = "a process was killed that this or another case ran in, perhaps for want of memory: run again to go on"
TRIES = 4  # of a case on a cluster, where its process or its node is lost every time


@dataclass(frozen=True)
class Failure:
    """A method that raised, and where."""

    case: str
    method: str
    error: str


Work = Callable[[Case, Options], list[Failure]]
Done = Iterator[tuple[Case, list[Failure]]]


def in_this_process(work: Work, todo: list[Case], options: Options) -> Done:
    """One case after another."""
    return ((case, work(case, options)) for case in todo)


def in_processes(work: Work, todo: list[Case], options: Options) -> Done:
    """As many cases at a time as there are jobs, each in a process of this machine."""
    joblib = require("joblib", "parallel")
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = dict(enumerate(todo))
    while left:
        parallel = joblib.Parallel(n_jobs=options.jobs, return_as="generator_unordered", batch_size=1)
        jobs = [joblib.delayed(_numbered)(work, number, case, options, os.getpid()) for number, case in left.items()]
        try:
            for number, failures in parallel(jobs):
                yield left.pop(number), failures
        except TerminatedWorkerError:  # for want of memory, most likely; the pool is gone, and a new one takes over
            for number in list(left)[: options.jobs]:  # cases begin in order: these were under way
                case = left.pop(number)
                yield case, _all_of(case, options, KILLED)


def _numbered(work: Work, number: int, case: Case, options: Options, runner: int) -> tuple[int, list[Failure]]:
    end_with(runner)
    return number, work(case, options)


@cache
def end_with(runner: int) -> None:
    """Let this process end when the one that started it does, however that ends: nobody waits for its results.

    What is being written then is not there in part: files appear under their names when they are complete.
    """

    def watch() -> None:
        while os.getppid() == runner:
            time.sleep(0.5)
        os._exit(1)

    if os.getpid() == runner:  # no process of its own
        return
    threading.Thread(target=watch, daemon=True, name="end with the runner").start()


def on_ray(work: Work, todo: list[Case], options: Options) -> Done:
    """As many cases at a time as there are jobs, each on some node of a Ray cluster.

    A case whose process or node is lost runs again, elsewhere. Nodes read the data, and write results and checkpoints,
    in the same folders as this process, on a file system that they share.

    Raises:
        ConnectionError: if there is no cluster at the address.
    """
    ray = require("ray", "ray")
    if ray.is_initialized():
        yield from _on_cluster(ray, work, todo, options)
        return
    ray.init(options.address)
    try:
        yield from _on_cluster(ray, work, todo, options)
    finally:
        ray.shutdown()  # which ends what still runs for this process


def _on_cluster(ray: Any, work: Work, todo: list[Case], options: Options) -> Done:
    jobs, processors = _shares(ray, options.jobs)
    own = replace(options, jobs=jobs, processors=processors, data=options.data.absolute(), out=options.out.absolute())
    task = ray.remote(max_retries=TRIES - 1, scheduling_strategy="SPREAD")(_on_node)
    waiting = deque(todo)
    running: dict[Any, Case] = {}
    while waiting or running:
        while waiting and len(running) < jobs:
            case = waiting.popleft()
            running[task.options(num_cpus=case.threads(own), name=str(case)).remote(work, case, own)] = case
        (ended,), _ = ray.wait([*running], num_returns=1)
        case = running.pop(ended)
        try:
            failures = ray.get(ended)
        except ray.exceptions.RayError as error:
            failures = _all_of(case, own, f"{error}\n(what is lost is tried {TRIES} times: run again to go on)")
        yield case, failures


def _shares(ray: Any, jobs: int | None) -> tuple[int, int]:
    """Cases at a time, and processors that they share: no case asks for more than the largest node has."""
    counts = [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]
    jobs = jobs or max(sum(counts), 1)
    return jobs, jobs * max(min(sum(counts) // jobs, max(counts)), 1)


def _on_node(work: Work, case: Case, options: Options) -> list[Failure]:
    if not declared(options.out, case.benchmark).exists():  # better known now than after training
        where = f"{options.out} is not the same folder on node {platform.node()}: --out must be one that all share"
        return _all_of(case, options, where)
    left = {name: case.methods[name] for name in case.missing(options.out)}  # after what a lost process has written
    return work(replace(case, methods=left), options)


def _all_of(case: Case, options: Options, error: str) -> list[Failure]:
    """The same failure of all methods that have no result yet."""
    return [Failure(str(case), name, error) for name in case.missing(options.out)]
