#include <penstock/zero/launch/launch.hpp>

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::SeededRandom;
using Variables = std::map<std::string, std::string>;

Result<Launch> launch_of(Variables variables, const LaunchOptions& options = {}) {
  return find_launch(options, [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables torchrun = {{"RANK", "5"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "4"},
                            {"MASTER_ADDR", "10.0.0.7"},
                            {"MASTER_PORT", "29400"},
                            {"TORCHELASTIC_RUN_ID", "run-7"}};
const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "3"},
                            {"OMPI_COMM_WORLD_SIZE", "4"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "3"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                            {"PMIX_RANK", "3"},
                            {"PMIX_NAMESPACE", "1234567"}};
const Variables mpich = {
    {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
const Variables slurm = {{"SLURM_PROCID", "4"},
                         {"SLURM_NTASKS", "5"},
                         {"SLURM_STEP_NUM_TASKS", "5"},
                         {"SLURM_LOCALID", "1"},
                         {"SLURM_NODEID", "2"},
                         {"SLURM_STEP_TASKS_PER_NODE", "1,2(x2)"},
                         {"SLURM_STEP_NODELIST", "gpu[003-004,9],login1"},
                         {"SLURM_JOB_ID", "77"},
                         {"SLURM_STEP_ID", "0"}};

struct Place {
  std::uint32_t rank, ranks;
  std::optional<std::uint32_t> local_rank, local_ranks;
  std::string launcher, job;
};
void expect_place(const Result<Launch>& found, const Place& place) {
  ASSERT_TRUE(found) << found.error().message();
  EXPECT_EQ(found->rank, place.rank);
  EXPECT_EQ(found->ranks, place.ranks);
  EXPECT_EQ(found->local_rank, place.local_rank);
  EXPECT_EQ(found->local_ranks, place.local_ranks);
  EXPECT_EQ(found->source.substr(0, found->source.find(':')), place.launcher);
  EXPECT_EQ(found->job, place.job);
}

TEST(Launch, IsOfOneRankWithoutALauncher) {
  expect_place(launch_of({}), {0, 1, 0, 1, "no launcher", ""});
}

TEST(Launch, IsAsTheLauncherSays) {
  expect_place(launch_of(torchrun), {5, 8, 1, 4, "torchrun", "run-7"});
  expect_place(launch_of(open_mpi), {3, 4, 3, 4, "Open MPI", "1234567"});
  expect_place(launch_of(mpich), {1, 2, 1, 2, "MPICH", ""});
  expect_place(launch_of(slurm), {4, 5, 1, 2, "Slurm", "77.0"});
  expect_place(launch_of({{"PMIX_RANK", "1"}, {"WORLD_SIZE", "2"}, {"PMIX_NAMESPACE", "n"}}),
               {1, 2, {}, {}, "PMIx", "n"});
  expect_place(launch_of({}, {.rank = 2, .ranks = 3, .local_rank = 0, .local_ranks = 1}),
               {2, 3, 0, 1, "options", ""});
  EXPECT_EQ(launch_of(mpich)->source, "MPICH: PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2");
}

TEST(Launch, NamesTheJobAsTheUserDoes) {
  EXPECT_EQ(launch_of(with(torchrun, {{"PENSTOCK_JOB", "mine"}}))->job, "mine");
  EXPECT_EQ(launch_of({{"PENSTOCK_JOB", "mine"}}, {.rank = 0, .ranks = 2})->job, "mine");
}

TEST(Launch, ReadsTheEnvironmentOfTheProcess) {
  ASSERT_EQ(::setenv("PENSTOCK_JOB", "of this test", 1), 0);
  EXPECT_EQ(process_environment()("PENSTOCK_JOB"), "of this test");
  EXPECT_EQ(find_launch({.rank = 0, .ranks = 2})->job, "of this test");
  ::unsetenv("PENSTOCK_JOB");
  EXPECT_EQ(process_environment()("PENSTOCK_JOB"), std::nullopt);
}

// srun --mpi=pmi2 sets these beside Slurm's own, which say more.
TEST(Launch, IsSlurmsWhereItsPluginSetsVariablesOfMpich) {
  const Variables pmi2 =
      with(slurm, {{"PMI_RANK", "4"}, {"PMI_SIZE", "5"}, {"PMI_FD", "9"}, {"PMI_JOBID", "77.0"}});
  expect_place(launch_of(pmi2), {4, 5, 1, 2, "Slurm", "77.0"});
  EXPECT_EQ(launch_of(pmi2)->master->host, "gpu003");
  EXPECT_EQ(launch_of(with(slurm, mpich))->source.substr(0, 5), "MPICH");
  // A rank of mpiexec in a step of one task.
  EXPECT_EQ(launch_of(with(slurm, {{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}))->source.substr(0, 5), "MPICH");
}

TEST(Launch, PrefersTheSourceThatIsNamedFirst) {
  Variables all = with(with(with(torchrun, open_mpi), mpich), slurm);
  EXPECT_EQ(launch_of(all, {.rank = 0, .ranks = 1})->rank, 0u);
  EXPECT_EQ(launch_of(all)->rank, 5u);
  for (const char* name : {"RANK", "WORLD_SIZE"}) all.erase(name);
  EXPECT_EQ(launch_of(all)->rank, 3u);
  for (const char* name : {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"}) all.erase(name);
  EXPECT_EQ(launch_of(all)->rank, 1u);
  for (const char* name : {"PMI_RANK", "PMI_SIZE"}) all.erase(name);
  EXPECT_EQ(launch_of(all)->rank, 4u);
}

TEST(Launch, DoesNotTakeABatchScriptForARank) {
  for (const char* step : {"", "4294967291", "4294967290", "batch"}) {
    Variables script = slurm;
    script.erase("SLURM_STEP_ID");
    if (*step != 0) script["SLURM_STEP_ID"] = step;
    expect_place(launch_of(script), {0, 1, 0, 1, "no launcher", ""});
  }
}

TEST(Launch, NamesTheMaster) {
  const auto master = [](const Variables& variables) { return launch_of(variables).value().master; };
  EXPECT_EQ(master(torchrun), (Endpoint{"10.0.0.7", 29400}));
  EXPECT_EQ(launch_of(torchrun, {.master = Endpoint{"other", 1}}).value().master, (Endpoint{"other", 1}));
  EXPECT_EQ(master(slurm)->host, "gpu003");
  EXPECT_EQ(master(with(slurm, {{"MASTER_ADDR", "other"}}))->host, "other");
  EXPECT_EQ(master(open_mpi)->host, "127.0.0.1");
  EXPECT_EQ(master(mpich), (Endpoint{"127.0.0.1", 29500})) << "its job has no name";
  EXPECT_EQ(master(with(open_mpi, {{"OMPI_COMM_WORLD_SIZE", "8"}})), std::nullopt)
      << "some ranks are elsewhere";
  EXPECT_EQ(master(with(open_mpi, {{"OMPI_COMM_WORLD_SIZE", "8"}, {"MASTER_ADDR", "::1"}}))->host, "::1");
}

TEST(Launch, GivesJobsOfOneMachineDifferentPorts) {
  const auto port = [](const char* job) {
    return launch_of(with(open_mpi, {{"PMIX_NAMESPACE", job}})).value().master->port;
  };
  EXPECT_EQ(port("1"), port("1"));
  EXPECT_NE(port("1"), port("2"));
  for (const char* job : {"1", "2", "prterun-host-1234@1"}) {
    EXPECT_GE(port(job), 20000u);
    EXPECT_LT(port(job), 30000u) << "below the ports that the system gives to clients";
  }
}

TEST(Launch, FindsTheFirstNodeOfSlurm) {
  const std::pair<const char*, const char*> lists[] = {{"one", "one"},
                                                       {"a,b", "a"},
                                                       {"n[7]", "n7"},
                                                       {"n[01-03],x", "n01"},
                                                       {"rack[2-3]n[5,9]-ib", "rack2n5-ib"},
                                                       {"h[1,3].example.org,z", "h1.example.org"}};
  for (const auto& [list, first] : lists) {
    EXPECT_EQ(launch_of(with(slurm, {{"SLURM_STEP_NODELIST", list}})).value().master->host, first) << list;
  }
}

void expect_refused(const Result<Launch>& found, const std::string& words) {
  ASSERT_FALSE(found) << words;
  EXPECT_EQ(found.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(found.error().message().find(words), std::string::npos) << found.error().message();
  EXPECT_NE(found.error().message().find("\n  try "), std::string::npos) << found.error().message();
}

TEST(Launch, RefusesWhatIsNoNumber) {
  for (const char* value : {"", " ", "-1", "+1", "1x", "0x1", "1.0", "4294967296", "99999999999999999999"}) {
    expect_refused(launch_of(with(torchrun, {{"RANK", value}})), "RANK");
    expect_refused(launch_of(with(torchrun, {{"LOCAL_WORLD_SIZE", value}})), "LOCAL_WORLD_SIZE");
    expect_refused(launch_of(with(slurm, {{"SLURM_LOCALID", value}})), "SLURM_LOCALID");
  }
  for (const char* value : {"", "0", "65535", "65536", "x"})
    expect_refused(launch_of(with(torchrun, {{"MASTER_PORT", value}})), "MASTER_PORT");
}

TEST(Launch, RefusesAPlaceThatCannotBe) {
  expect_refused(launch_of(with(torchrun, {{"RANK", "8"}})), "RANK, wanted below 8");
  expect_refused(launch_of(with(torchrun, {{"WORLD_SIZE", "0"}})), "WORLD_SIZE");
  expect_refused(launch_of(with(torchrun, {{"LOCAL_RANK", "4"}})), "LOCAL_RANK, wanted below 4");
  expect_refused(launch_of(with(torchrun, {{"LOCAL_WORLD_SIZE", "9"}})), "LOCAL_WORLD_SIZE");
  expect_refused(launch_of({}, {.rank = 2, .ranks = 2}), "--rank");
  expect_refused(launch_of({}, {.rank = 0}), "--world");
  expect_refused(launch_of({}, {.ranks = 2}), "--rank");
  expect_refused(launch_of({}, {.local_rank = 0}), "--rank");
  expect_refused(launch_of({{"RANK", "0"}}), "WORLD_SIZE");
  expect_refused(launch_of({{"WORLD_SIZE", "2"}}), "RANK");
  expect_refused(launch_of({{"PMIX_RANK", "0"}}), "WORLD_SIZE");
  expect_refused(launch_of({{"OMPI_COMM_WORLD_SIZE", "2"}}), "OMPI_COMM_WORLD_RANK");
  expect_refused(launch_of(with(torchrun, {{"MASTER_ADDR", ""}})), "MASTER_ADDR");
  expect_refused(launch_of(with(slurm, {{"SLURM_STEP_TASKS_PER_NODE", "2(x"}})), "SLURM_STEP_TASKS_PER_NODE");
  expect_refused(launch_of(with(slurm, {{"SLURM_NODEID", "3"}})), "SLURM_NODEID");
  expect_refused(launch_of(with(slurm, {{"SLURM_STEP_NODELIST", "n[1"}})), "SLURM_STEP_NODELIST");
}

TEST(Launch, RefusesPlacesThatContradictEachOtherAndNamesBoth) {
  // Without a count of the ranks on the machine.
  Variables uncounted = torchrun;
  uncounted.erase("LOCAL_WORLD_SIZE");
  expect_refused(launch_of(with(uncounted, {{"LOCAL_RANK", "8"}})),
                 "LOCAL_RANK, wanted below 8, WORLD_SIZE, got 8");
  expect_refused(launch_of(with(uncounted, {{"LOCAL_RANK", "6"}})),
                 "got RANK=5 of WORLD_SIZE=8, LOCAL_RANK=6");
  expect_refused(launch_of(with(torchrun, {{"RANK", "2"}, {"LOCAL_RANK", "3"}})),
                 "got RANK=2 of WORLD_SIZE=8, LOCAL_RANK=3 of LOCAL_WORLD_SIZE=4");
  // One LOCAL_RANK for all ranks of a machine: they would share a GPU.
  expect_refused(
      launch_of(with(torchrun,
                     {{"WORLD_SIZE", "2"}, {"RANK", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}})),
      "got RANK=1 of WORLD_SIZE=2, LOCAL_RANK=0 of LOCAL_WORLD_SIZE=2");
  expect_refused(launch_of(with(open_mpi, {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}})),
                 "OMPI_COMM_WORLD_RANK=3 of OMPI_COMM_WORLD_SIZE=4, OMPI_COMM_WORLD_LOCAL_RANK=1");
  expect_refused(launch_of(with(mpich, {{"PMI_RANK", "0"}})), "PMI_RANK=0 of PMI_SIZE=2, MPI_LOCALRANKID=1");
  expect_refused(launch_of(with(slurm, {{"SLURM_PROCID", "0"}})),
                 "SLURM_PROCID=0 of SLURM_STEP_NUM_TASKS=5, SLURM_LOCALID=1");
  expect_refused(launch_of(with(slurm, {{"SLURM_LOCALID", "0"}})),
                 "SLURM_LOCALID=0 of SLURM_STEP_TASKS_PER_NODE=2");
  expect_refused(launch_of({}, {.rank = 0, .ranks = 2, .local_rank = 2}),
                 "--local-rank, wanted below 2, --world, got 2");
  expect_refused(launch_of({}, {.rank = 0, .ranks = 2, .local_rank = 1}),
                 "got --rank=0 of --world=2, --local-rank=1");
}

TEST(Launch, AcceptsEveryPlaceOnMachinesThatTakeRanksInAnyOrder) {
  SeededRandom random(17);
  for (int round = 0; round < 200; ++round) {
    const auto ranks = static_cast<std::uint32_t>(1 + random.below(9)),
               machines = static_cast<std::uint32_t>(1 + random.below(4));
    std::vector<std::uint32_t> local_rank, machine, count(machines);
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      machine.push_back(static_cast<std::uint32_t>(random.below(machines)));
      local_rank.push_back(count[machine[rank]]++);
    }
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      expect_place(launch_of({{"RANK", std::to_string(rank)},
                              {"WORLD_SIZE", std::to_string(ranks)},
                              {"LOCAL_RANK", std::to_string(local_rank[rank])},
                              {"LOCAL_WORLD_SIZE", std::to_string(count[machine[rank]])}}),
                   {rank, ranks, local_rank[rank], count[machine[rank]], "torchrun", ""});
    }
  }
}

TEST(Launch, DoesNotCompareTheVariablesOfDifferentLaunchers) {
  const Variables inside = with(slurm, torchrun);  // rank 4 of 5 of the step, which has started torchrun
  expect_place(launch_of(inside), {5, 8, 1, 4, "torchrun", "run-7"});
}

TEST(Endpoint, IsReadAndPrinted) {
  EXPECT_EQ(Endpoint::parse("host:1").value(), (Endpoint{"host", 1}));
  EXPECT_EQ(Endpoint::parse("[::1]:65534").value(), (Endpoint{"::1", 65534}));
  EXPECT_EQ(to_string(Endpoint{"::1", 5}), "[::1]:5");
  EXPECT_EQ(to_string(Endpoint{"host", 5}), "host:5");
  for (const char* text : {"", "host", ":1", "host:", "host:0", "host:65536", "host:x", "::1:5", "[::1]",
                           "[]:5", "[::1]5", "host:1 ", "a b:1"}) {
    EXPECT_FALSE(Endpoint::parse(text)) << text;
  }
}

}  // namespace
}  // namespace penstock::zero
