#!/ usr / bin / env python3
"""A rank is lost at the points of a step: killed, stopped, cut off from the network, or deaf, with nothing but its
connection to rank 0's control channel. Every other rank ends in time, and names the lost rank, the collective and the
step.

lost_ranks.py kill|stop|cut|deaf --trainer PROGRAM [--mpi-module libpenstock_mpi.so]

With the library, the ranks exchange their bytes over MPI, under mpirun, and every fourth point is tried. mpirun would
end the others with a rank that is killed, so it is told not to.
"""
import argparse
import concurrent.futures
import re
import shutil

from processes import Job, MpiJob, free_port, skip, two_hosts

RANKS, SILENCE, AT_A_TIME = 3, 2, 4


def points_of_a_step(trainer):
    with Job() as job:
        port = free_port()
        for rank in range(RANKS):
            job.start([trainer, "--rank", rank, "--ranks", RANKS, "--port", port])
        assert not job.wait(range(RANKS), 60), "a job without harm does not end"
        digests = {job.output(rank) for rank in range(RANKS)}
        assert len(digests) == 1 and all(job.status[rank] == 0 for rank in range(RANKS)), digests
        return int(re.search(r"points of a step (\d+)", digests.pop()).group(1))


def lose(trainer, point, harm):
    """Returns what is wrong."""
    victim = point % RANKS
    port = free_port()
    with Job() as job:
        for rank in range(RANKS):
            job.start([trainer, "--rank", rank, "--ranks", RANKS, "--port", port, "--silence", SILENCE,
                       "--point", point, "--victim", victim, "--harm", harm])
        return judge(job, victim, f"{harm} rank {victim} at point {point}")


def lose_under_mpirun(trainer, module, point, harm):
    victim = point % RANKS
    command = [trainer, "--mpi", "--ranks", RANKS, "--port", free_port(), "--silence", SILENCE,
               "--point", point, "--victim", victim, "--harm", harm]
    with MpiJob(RANKS, module, command) as job:
        return judge(job, victim, f"{harm} rank {victim} at point {point}, over MPI")


def judge(job, victim, what):
    others = [rank for rank in range(RANKS) if rank != victim]
    late = job.wait(others, 20)
    if late:
        return f"{what}: ranks {late} do not end"
    for rank in others:
        text = job.output(rank)
        for wanted in (rf"\brank {victim}\b", r"\bin +(all-gather|reduce-scatter|exchange) of", r"\bof step 2\b"):
            if not re.search(wanted, text):
                return f"{what}: rank {rank} does not say {wanted}:\n{text}"
        if job.status[rank] != 1:
            return f"{what}: rank {rank} ends with status {job.status[rank]}:\n{text}"
    return None


def cut(trainer, point):
    """Host 1 has the last rank, which cuts its cable itself. It has then lost rank 0."""
    victim = RANKS - 1
    with two_hosts(f"penstock{point}x") as (on_host, addresses, ends), Job() as job:
        port = free_port()
        for rank in range(RANKS):
            host = 1 if rank == victim else 0
            job.start(on_host(host, [trainer, "--rank", rank, "--ranks", RANKS, "--host", addresses[0], "--port", port,
                                     "--silence", SILENCE, "--point", point, "--victim", victim,
                                     "--harm", f"ip link set {ends[1]} down"]))
        wrong = judge(job, victim, f"cut off rank {victim} at point {point}")
        late = job.wait([victim], 20)
        text = job.output(victim)
        return wrong or (None if not late and re.search(r"\brank 0\b", text) else
                         f"the rank that is cut off at point {point}:\n{text}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("harm", choices=["kill", "stop", "cut", "deaf"])
    parser.add_argument("--trainer", required=True)
    parser.add_argument("--mpi-module")
    arguments = parser.parse_args()
    trainer, harm, module = arguments.trainer, arguments.harm, arguments.mpi_module
    if module and not shutil.which("mpirun"):
        skip("mpirun is not installed")
    points = range(0, points_of_a_step(trainer), 4 if module else 1)

    def lose_at(point):
        if module:
            return lose_under_mpirun(trainer, module, point, harm)
        return cut(trainer, point) if harm == "cut" else lose(trainer, point, harm)

    with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as pool:
        wrong = [result for result in pool.map(lose_at, points) if result]
    print("\n".join(wrong) or
          f"{len(points)} points of a step: every other rank has ended with the name of the lost one")
    return 1 if wrong else 0


raise SystemExit(main())
