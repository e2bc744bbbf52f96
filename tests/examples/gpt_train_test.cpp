// Runs gpt_train as a user does, with typical mistakes of users.
#include "gpt_process.hpp"

#include "kit/sanitizer.hpp"
#include "kit/scratch_directory.hpp"

#include "base/owned_fd.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <regex>
#include <string>
#include <utility>
#include <vector>

namespace {

using gpt::test::Outcome;
using gpt::test::train;
using gpt::test::TrainProcess;

std::string digest_in(const std::string& output) {
  const std::string label = "digest of all master weights  ";
  const auto at = output.find(label);
  return at == std::string::npos ? "" : output.substr(at + label.size(), 32);
}

class GptTrain : public testing::Test {
 protected:
  /// A small model on the scratch directory; `change` is put into the configuration.
  std::string arguments(const std::string& change = "", const std::string& key = "zero_optimization",
                        const std::string& optimizer_device = "nvme") {
    const std::string text_file = (directory_.path() / "text").string();
    std::ofstream text(text_file);
    for (int i = 0; i < 4000; ++i) text << "the quick brown fox jumps over the lazy dog " << i << "\n";
    const std::string config_file = (directory_.path() / "config.json").string();
    std::ofstream config(config_file);
    config
        << R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2, "bf16": {"enabled": true},
      "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
      ")"
        << key << R"(": {"stage": 3,
        "offload_param": {"device": "nvme", "nvme_path": ")"
        << swap() << R"("},
        "offload_optimizer": {"device": ")"
        << optimizer_device << R"(", "nvme_path": ")" << swap() << R"("}})" << change << "}";
    return "--layers 1 --width 64 --heads 2 --context 32 --steps 2 --text " + text_file + " --config " +
           config_file;
  }
  std::string swap() const { return swap_.path().string(); }
  /// The same arguments, with the text of the configuration changed.
  std::string with_replaced(const std::string& all, const std::string& old, const std::string& by) const {
    const std::string file = (directory_.path() / "config.json").string();
    std::ifstream in(file);
    std::string text{std::istreambuf_iterator<char>(in), {}};
    text.replace(text.find(old), old.size(), by);
    std::ofstream(file) << text;
    return all;
  }

  /// Runs it with `redirection` of the shell, where it cannot print: it must say so and use no file as its output.
  void expect_output_error(const std::string& redirection) {
    const Outcome outcome = train(arguments() + " " + redirection);
    EXPECT_EQ(outcome.status, 1) << redirection << ": " << outcome.output;
    EXPECT_NE(outcome.output.find("error: standard output cannot be written"), std::string::npos)
        << redirection << ": " << outcome.output;
  }

  void expect_refused(const Outcome& outcome, int status, std::initializer_list<const char*> words) {
    EXPECT_EQ(outcome.status, status) << outcome.output;
    EXPECT_NE(outcome.output.find("error: "), std::string::npos) << outcome.output;
    for (const char* word : words)
      EXPECT_NE(outcome.output.find(word), std::string::npos) << word << " in\n" << outcome.output;
    EXPECT_EQ(outcome.output.find("step 1/"), std::string::npos) << "no partial claims\n" << outcome.output;
    EXPECT_EQ(swap_.entry_count(), 0u);
  }

  /// Expects that training had started, and ended with one message and without a result.
  void expect_stopped(const Outcome& outcome, std::initializer_list<const char*> words) {
    EXPECT_EQ(outcome.status, 1) << outcome.output;
    EXPECT_EQ(outcome.output.find("error: "), outcome.output.rfind("error: ")) << outcome.output;
    for (const char* word : words)
      EXPECT_NE(outcome.output.find(word), std::string::npos) << word << " in\n" << outcome.output;
    EXPECT_EQ(digest_in(outcome.output), "") << "no partial claims";
    EXPECT_EQ(swap_.entry_count(), 0u);
  }
  static off_t length_of(const penstock::OwnedFd& file) {
    struct stat status {};
    EXPECT_EQ(::fstat(file.get(), &status), 0);
    return status.st_size;
  }
  /// Applies `damage` to the swap file of a stopped process, after one step and the next until the process ends: what
  /// is in memory at one time, to be written again, is not at another.
  template <class Damage>
  Outcome damage_until_it_ends(const Damage& damage) {
    TrainProcess process(arguments() + endless);
    for (int step = 2; step < 1000 && process.wait_for_output("step " + std::to_string(step) + "/"); ++step) {
      process.kill(SIGSTOP);
      if (const penstock::OwnedFd file(process.open_swap_file(swap())); file.is_open()) damage(file);
      process.kill(SIGCONT);
    }
    return process.finish();
  }
  static constexpr const char* endless = " --steps 100000";

  penstock::test::ScratchDirectory directory_, swap_;
};

TEST_F(GptTrain, FailsWhereItCannotPrint) {
  expect_output_error("> /dev/full");
  expect_output_error(">&-");
}

TEST_F(GptTrain, TrainsOnDiskToTheDigestItHasInMemory) {
  const Outcome outcome = train(arguments() + " --check");

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("check passed"), std::string::npos) << outcome.output;
  EXPECT_EQ(swap_.entry_count(), 0u);
}

TEST_F(GptTrain, TrainsWithCheckpointedActivationsToTheSameDigestInLessMemory) {
  const std::string deep = arguments() + " --layers 6 --context 64";
  const Outcome whole = train(deep), checkpointed = train(deep + " --checkpoint-activations");
  const auto activations = [](const Outcome& outcome) {
    const std::string label = "activations ";
    const auto at = outcome.output.find(label);
    return at == std::string::npos ? 0 : std::atof(outcome.output.c_str() + at + label.size());
  };

  EXPECT_EQ(checkpointed.status, 0) << checkpointed.output;
  EXPECT_EQ(digest_in(checkpointed.output), digest_in(whole.output));
  EXPECT_GT(activations(checkpointed), 0);
  EXPECT_LT(activations(checkpointed), 0.5 * activations(whole)) << checkpointed.output;
}

TEST_F(GptTrain, ReadsParametersAsOftenForManyMicroBatchesAsForOneIfItAccumulatesByLayer) {
  // The budget holds two thirds of the shards.
  const std::string changes = R"(, "penstock": {"host_budget": "3MiB", "tile_elements": 16384})";
  const auto read_mib = [&](int micro_batches, const std::string& option) {
    const Outcome outcome = train(with_replaced(arguments(changes) + " --layers 8 --width 128 " + option,
                                                "accumulation_steps\": 2",
                                                "accumulation_steps\": " + std::to_string(micro_batches)));
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    std::smatch match;
    EXPECT_TRUE(std::regex_search(outcome.output, match, std::regex("\nparameter shards +([0-9.]+) MiB")))
        << outcome.output;
    return match.empty() ? 0 : std::stod(match[1]);
  };
  const double one = read_mib(1, "");

  EXPECT_GT(one, 1);
  EXPECT_GT(read_mib(6, ""), 4 * one);
  EXPECT_NEAR(read_mib(6, "--accumulate-by-layer") / one, 1, 0.25);
}

TEST_F(GptTrain, TrainsByLayerToTheSameDigestOnDiskAndInMemoryWithAndWithoutCheckpoints) {
  const Outcome outcome = train(arguments() + " --accumulate-by-layer --check"),
                checkpointed = train(arguments() + " --accumulate-by-layer --checkpoint-activations");

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_NE(outcome.output.find("check passed"), std::string::npos) << outcome.output;
  EXPECT_EQ(digest_in(checkpointed.output), digest_in(outcome.output));
}

TEST_F(GptTrain, TrainsABlockThatIsLargerThanTheDevicesBudget) {
  const std::string shape = " --width 256 --context 16";
  const std::string budget = R"(, "penstock": {"device_budget": "2MiB", "tile_elements": 16384)";

  expect_refused(train(arguments(budget + "}") + shape), 2,
                 {"device budget is too small", "penstock.device_budget"});
  const Outcome cut = train(arguments(budget + R"(, "unit_elements_max": 75000})") + shape +
                            " --checkpoint-activations --check");

  EXPECT_EQ(cut.status, 0) << cut.output;
  EXPECT_NE(cut.output.find("check passed"), std::string::npos) << cut.output;
}

TEST_F(GptTrain, RefusesALimitOfUnitsThatItCannotKeep) {
  const auto limited = [&](const char* limit) {
    return train(arguments(R"(, "penstock": {"unit_elements_max": )" + std::string(limit) + "}"));
  };
  expect_refused(limited("1000"), 2, {"qkv.weight", "64 rows", "penstock.unit_elements_max"});
  expect_refused(limited("17000"), 2, {"embed", "at most 17 000", "unit_elements_max"});
  expect_refused(limited("-1"), 2, {"penstock.unit_elements_max"});
}

TEST_F(GptTrain, KeepsCheckpointsInTheEnginesTiersWithoutChangingTheResult) {
  const std::string deep = " --layers 6 --context 512 ";
  const std::string budget = R"(, "penstock": {"host_budget": "3MiB", "tile_elements": 16384})";
  const Outcome kept = train(arguments() + deep + "--checkpoint-activations"),
                in_host = train(arguments() + deep + "--offload-activations"),
                on_disk = train(arguments(budget) + deep + "--offload-activations");
  for (const Outcome* const outcome : {&in_host, &on_disk}) {
    EXPECT_EQ(outcome->status, 0) << outcome->output;
    EXPECT_EQ(digest_in(outcome->output), digest_in(kept.output));
    EXPECT_NE(outcome->output.find("device  checkpoints"), std::string::npos) << outcome->output;
  }
  EXPECT_NE(on_disk.output.find("nvme    checkpoints"), std::string::npos) << on_disk.output;
  const std::string by_layer = arguments() + " --layers 3 --accumulate-by-layer ";
  EXPECT_EQ(digest_in(train(by_layer + "--offload-activations").output), digest_in(train(by_layer).output));
  const std::string cut = arguments(R"(, "penstock": {"unit_elements_max": 33000})") + " --layers 3 ";
  EXPECT_EQ(digest_in(train(cut + "--offload-activations").output), digest_in(train(cut).output));
  const std::string both = cut + "--accumulate-by-layer ";
  EXPECT_EQ(digest_in(train(both + "--offload-activations").output), digest_in(train(both).output));
}

TEST_F(GptTrain, TracesStreamsAndDisksWithoutChangingTheResult) {
  const std::string file = (directory_.path() / "trace.json").string();
  const Outcome plain = train(arguments()), traced = train(arguments() + " --trace " + file);

  EXPECT_EQ(traced.status, 0) << traced.output;
  EXPECT_EQ(digest_in(traced.output), digest_in(plain.output));
  for (const char* const words :
       {"rank 1", "compute", "idle", "parameters", "room for gradients", "step", "disk 1"}) {
    EXPECT_NE(traced.output.find(words), std::string::npos) << words << " in\n" << traced.output;
  }
  std::ifstream in(file);
  const std::string trace{std::istreambuf_iterator<char>(in), {}};
  for (const char* const name : {"forward block.0", "backward head", "wait for parameters of embed",
                                 "copy to device", "copy to host", "read and write"}) {
    EXPECT_NE(trace.find(std::string("\"name\": \"") + name), std::string::npos) << name;
  }
  expect_refused(train(arguments() + " --trace /nonexistent/trace.json"), 2, {"/nonexistent/trace.json"});
}

TEST_F(GptTrain, WritesItsFiguresAsJson) {
  const std::string file = (directory_.path() / "report.json").string();
  const Outcome outcome = train(arguments() + " --json " + file);

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  std::ifstream in(file);
  const std::string json{std::istreambuf_iterator<char>(in), {}};
  EXPECT_NE(json.find("\"digest\": \"" + digest_in(outcome.output) + "\""), std::string::npos) << json;
  for (const char* const words :
       {"\"tokens_per_step\": 128", "{\"loss\": 5.", "\"update_seconds\": ", "\"skipped\": false}",
        "{\"tier\": \"device\", \"purpose\": \"full gradients\"", "\"free_min_bytes\": "}) {
    EXPECT_NE(json.find(words), std::string::npos) << words << " in\n" << json;
  }
  expect_refused(train(arguments() + " --json /nonexistent/report.json"), 2, {"/nonexistent/report.json"});
}

TEST_F(GptTrain, NamesAMisspelledKeyAndTheNearestSpelling) {
  expect_refused(train(arguments("", "zero_optimisation")), 2,
                 {"zero_optimisation", "zero_optimization", "line"});
}

TEST_F(GptTrain, NamesAKeyOfTheWrongType) {
  expect_refused(train(arguments(R"(, "gradient_clipping": "much")")), 2, {"gradient_clipping", "much"});
}

TEST_F(GptTrain, NamesADirectoryThatIsMissing) {
  expect_refused(train(arguments() + " --nvme-path /nonexistent/disk"), 2, {"/nonexistent/disk"});
}

TEST_F(GptTrain, NamesADirectoryThatItMayNotWriteTo) {
  expect_refused(train(arguments() + " --nvme-path /proc/self"), 2, {"/proc/self"});
}

TEST_F(GptTrain, SaysHowMuchADiskLacksBeforeItStarts) {
  const std::string small = (directory_.path() / "small").string();
  ASSERT_EQ(::mkdir(small.c_str(), 0700), 0);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=300k") != 0)
    GTEST_SKIP() << "mounting a small tmpfs is not allowed here";

  const Outcome outcome = train(arguments() + " --nvme-path " + small);
  ::umount(small.c_str());

  expect_refused(outcome, 1, {"free", "wanted"});
}

TEST_F(GptTrain, MeasuresTheDiskWithAFileForWhichThereIsRoom) {
  const std::string small = (directory_.path() / "small").string();
  ASSERT_EQ(::mkdir(small.c_str(), 0700), 0);
  for (const auto& [size, said] : {std::pair("size=110m", "disk limit, measured now"),
                                   std::pair("size=90m", "the disk is not measured: too little is free")}) {
    if (::mount("tmpfs", small.c_str(), "tmpfs", 0, size) != 0)
      GTEST_SKIP() << "mounting a small tmpfs is not allowed here";

    const Outcome outcome = train(arguments() + " --nvme-path " + small);
    ::umount(small.c_str());

    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_NE(outcome.output.find(said), std::string::npos) << size << "\n" << outcome.output;
  }
}

TEST_F(GptTrain, RefusesABudgetThatCannotMakeProgress) {
  expect_refused(train(arguments(R"(, "penstock": {"host_budget": "100KiB"})")), 2,
                 {"host budget is too small", "wanted", "penstock.host_budget"});
}

TEST_F(GptTrain, RefusesARunThatTheMachinesMemoryCannotHold) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "a sanitizer's memory counts as the run's";
  const std::string file = (directory_.path() / "meminfo").string();
  std::ofstream(file) << "MemTotal: 1000000 kB\nMemAvailable: 60000 kB\n";
  // In a mount namespace of this process, so that nothing else sees the file.
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      ::mount(file.c_str(), "/proc/meminfo", nullptr, MS_BIND, nullptr) != 0) {
    GTEST_SKIP() << "mounting over /proc/meminfo is not allowed here";
  }

  const Outcome outcome = train(arguments());
  ::umount("/proc/meminfo");

  expect_refused(outcome, 1,
                 {"host memory does not suffice", "58.6 MiB available", "short", "/proc/meminfo"});
}

TEST_F(GptTrain, RefusesATextThatIsMissingOrEmpty) {
  const std::string empty = (directory_.path() / "empty").string();
  std::ofstream(empty).flush();

  expect_refused(train(arguments() + " --text /nonexistent/text"), 2, {"/nonexistent/text"});
  expect_refused(train(arguments() + " --text " + empty), 2, {"empty"});
}

TEST_F(GptTrain, TakesFromAPresetWhatIsNotGiven) {
  std::string without_context = arguments();
  without_context.erase(without_context.find("--context 32"), std::string("--context 32").size());

  const Outcome outcome = train("--preset 1b " + without_context);

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  // A context of 1024 tokens, for 2 ranks with 2 micro-batches each.
  EXPECT_NE(outcome.output.find("2 ranks, 4096 tokens a step"), std::string::npos) << outcome.output;
  expect_refused(train(arguments() + " --preset 8b"), 2, {"--preset", "one of 30m, 124m, 1b, 7b"});
}

TEST_F(GptTrain, RefusesSizesThatNoMachineHas) {
  expect_refused(train(arguments() + " --width 1000000"), 2, {"width", "1 to 65536"});
  expect_refused(train(arguments() + " --layers 4294967295"), 2, {"layers", "1 to 4096"});
  expect_refused(train(arguments() + " --heads 0"), 2, {"heads"});
  expect_refused(train(with_replaced(arguments() + " --accumulate-by-layer", "steps\": 2", "steps\": 1025")),
                 2, {"all micro-batches of a step", "at most 1024", "gradient_accumulation_steps"});
  expect_refused(train(arguments() + " --context 4000000000"), 2, {"context"});
  expect_refused(train(arguments() + " --text /dev/zero"), 2, {"/dev/zero", "too long"});
  expect_refused(train(arguments() + " --text /proc/self/mem"), 1, {"/proc/self/mem", "Input/output error"});
}

TEST_F(GptTrain, RefusesALimitOnAddressSpaceThatItCannotRunWith) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "a sanitizer needs more address space";
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_AS, &before), 0);
  const rlimit small{800'000'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &small), 0);

  const Outcome outcome = train(arguments());
  ASSERT_EQ(::setrlimit(RLIMIT_AS, &before), 0);

  expect_refused(outcome, 1, {"limit on address space", "ulimit -v"});
}

TEST_F(GptTrain, LetsTwoRunsShareADirectory) {
  const std::string both = arguments();
  const std::string alone = digest_in(train(both).output);
  ASSERT_FALSE(alone.empty());

  TrainProcess beside(both);
  const Outcome here = train(both);

  EXPECT_EQ(digest_in(here.output), alone) << here.output;
  EXPECT_EQ(digest_in(beside.finish().output), alone);
  EXPECT_EQ(swap_.entry_count(), 0u);
}

TEST_F(GptTrain, LeavesNothingBehindWhenItIsKilled) {
  TrainProcess process(arguments() + endless);
  ASSERT_TRUE(process.wait_for_output("step 2/")) << process.finish().output;

  process.kill(SIGKILL);
  const Outcome outcome = process.finish();

  EXPECT_EQ(outcome.status, -SIGKILL);
  EXPECT_EQ(swap_.entry_count(), 0u);
}

TEST_F(GptTrain, EndsAfterAWholeStepWithItsReportOnASignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    TrainProcess process(arguments() + endless);
    ASSERT_TRUE(process.wait_for_output("step 2/")) << process.finish().output;

    process.kill(signal);
    const Outcome outcome = process.finish();

    EXPECT_EQ(outcome.status, 128 + signal) << outcome.output;
    EXPECT_EQ(digest_in(outcome.output).size(), 32u) << outcome.output;
    EXPECT_EQ(outcome.output.find("error: "), std::string::npos) << outcome.output;
    EXPECT_EQ(swap_.entry_count(), 0u);
  }
}

TEST_F(GptTrain, EndsAtOnceOnASecondSignal) {
  TrainProcess process(arguments() + endless);
  ASSERT_TRUE(process.wait_for_output("step 2/")) << process.finish().output;
  process.kill(SIGSTOP);  // so that no step can end between the signals
  process.kill(SIGINT);
  process.kill(SIGTERM);
  process.kill(SIGCONT);

  const int status = process.finish().status;
  EXPECT_TRUE(status == -SIGTERM || status == -SIGINT) << status;
}

TEST_F(GptTrain, SaysWhichBytesOfTheSwapFileWereChangedUnderIt) {
  const Outcome outcome = damage_until_it_ends([](const penstock::OwnedFd& file) {
    const std::vector<char> garbage(static_cast<std::size_t>(length_of(file)), '?');
    ASSERT_EQ(::pwrite(file.get(), garbage.data(), garbage.size(), 0), static_cast<ssize_t>(garbage.size()));
    // EIO where a direct write, still on its way, meets these pages; they reach the disk all the same.
    EXPECT_TRUE(::fsync(file.get()) == 0 || errno == EIO);
  });

  expect_stopped(outcome, {"bytes read back differ", "lost    step ", " of 100000, on rank ",
                           "optimizer tile", "block", "at offset", swap().c_str(), "try"});
}

TEST_F(GptTrain, SaysWhereTheSwapFileWasCutOffUnderIt) {
  const Outcome outcome =
      damage_until_it_ends([](const penstock::OwnedFd& file) { ASSERT_EQ(::ftruncate(file.get(), 0), 0); });

  expect_stopped(outcome, {swap().c_str(), "at offset", "the run cannot continue"});
  // A write that was on its way makes the file long again, with a hole where bytes were.
  EXPECT_TRUE(outcome.output.find("the file is shorter than the data") != std::string::npos ||
              outcome.output.find("bytes read back differ") != std::string::npos)
      << outcome.output;
}

TEST_F(GptTrain, SaysThatTheDiskIsFullDuringTheRun) {
  const std::string small = (directory_.path() / "small").string();
  ASSERT_EQ(::mkdir(small.c_str(), 0700), 0);
  if (::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=4m") != 0)
    GTEST_SKIP() << "mounting a small tmpfs is not allowed here";
  Outcome outcome;
  {
    // Parameter shards alone are on disk, find room in memory too, and are written in every step.
    TrainProcess process(arguments(R"(, "penstock": {"host_budget": "16MiB"})", "zero_optimization", "cpu") +
                         endless + " --nvme-path " + small);
    EXPECT_TRUE(process.wait_for_output("step 2/"));
    // Free the reserved space of the swap file and fill the disk with another file.
    process.kill(SIGSTOP);
    const penstock::OwnedFd file(process.open_swap_file(small));
    EXPECT_TRUE(file.is_open());
    EXPECT_EQ(::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, length_of(file)), 0);
    const penstock::OwnedFd other(::open((small + "/other").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    const std::vector<char> bytes(1 << 16, 'x');
    while (::write(other.get(), bytes.data(), bytes.size()) > 0) {
    }
    process.kill(SIGCONT);
    outcome = process.finish();
  }
  ::umount(small.c_str());

  expect_stopped(outcome, {"No space left on device", "thin device", "lost    step ", small.c_str(),
                           "at offset", "parameter shard", "stays in memory, not yet stored"});
}

TEST_F(GptTrain, StaysWithinItsBudgetsAndAStatedConstant) {
  if (penstock::test::any_sanitizer) GTEST_SKIP() << "a sanitizer's shadow memory is resident too";
  const Outcome outcome = train(arguments() + " --width 256 --layers 3 --context 64");
  const std::string label = "peak resident memory ";
  const auto at = outcome.output.find(label);
  ASSERT_NE(at, std::string::npos) << outcome.output;
  double peak = 0, most = 0;
  ASSERT_EQ(
      std::sscanf(outcome.output.c_str() + at + label.size(), "%lf MiB of at most %lf MiB", &peak, &most), 2)
      << outcome.output.substr(at);

  EXPECT_GT(peak, 10);
  EXPECT_LE(peak, most);
}

}  // namespace
