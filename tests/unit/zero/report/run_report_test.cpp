#include "kit/scratch_directory.hpp"

#include <penstock/zero/report/run_report.hpp>

#include <gtest/gtest.h>
#include <json/json.h>
#include <sys/stat.h>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::ScratchDirectory;
using tiers::Purpose;
using tiers::Tier;
namespace fs = std::filesystem;

RunReport example() {
  return {.rank = 3,
          .steps = 20,
          .elapsed = std::chrono::seconds(100),
          .step = std::chrono::milliseconds(4900),
          .predicted_step = std::chrono::seconds(5),
          .step_traffic = {1_GiB, 800_MiB},
          .predicted_step_traffic = {1_GiB, 900_MiB},
          .stalled = std::chrono::milliseconds(12'500),
          .resident_peak = 3_GiB,
          .stalls = {{swap::StallCause::parameters, std::chrono::seconds(2)},
                     {swap::StallCause::update, std::chrono::milliseconds(10'500)}},
          .memory = {{Tier::device, Purpose::gathered_flat, 1_GiB, 1000_MiB, 0_B},
                     {Tier::host, Purpose::staging, {}, 256_MiB, 128_MiB}},
          .traffic = {{.purpose = Purpose::parameter_shard, .written = 1_GiB, .step = {0_B, 50_MiB}},
                      {.purpose = Purpose::optimizer_tile,
                       .read = 20_GiB,
                       .predicted_read = 20_GiB,
                       .written = 16_GiB,
                       .step = {1_GiB, 750_MiB},
                       .predicted_step = {1_GiB, 900_MiB}}},
          .drives = {{.directory = "/mnt/nvme0",
                      .engine = "io_uring",
                      .read = ByteCount(20'000'000'000),
                      .written = ByteCount(10'000'000'000),
                      .requests = 40'000,
                      .repeated = 2,
                      .latency_99 = std::chrono::microseconds(1500),
                      .busy = std::chrono::seconds(80),
                      .limit = 400e6,
                      .endurance = ByteCount(600'000'000'000'000),
                      .step = {1_GiB, 800_MiB, std::chrono::milliseconds(4000)},
                      .predicted_step = {1_GiB, 900_MiB, std::chrono::milliseconds(4100)}},
                     {.directory = "/mnt/nvme1", .engine = "threads"}},
          .changes = {{"disks twice as fast", 0.25}, {"25 % more host budget", 0.05}},
          .changes_note = "a step takes 5 s as simulated, and has taken 4.9 s"};
}

std::string contents(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

TEST(RunReport, IsATableForPeople) {
  // 30 GB in 100 s are 75 % of 400 MB/s; 10 GB in 100 s are 8.64 TB a day, of the 599.99 TB that are left.
  EXPECT_EQ(
      to_text(example()),
      "rank 3, 20 steps, 100 s, callers waited 12 s (12 %), peak of the process 3.0 GiB\n"
      "\n"
      "callers waited for    time  of the run\n"
      "parameters          2.00 s      2.00 %\n"
      "update                10 s        10 %\n"
      "\n"
      "memory                  predicted        peak        now\n"
      "device, gathered flats    1.0 GiB  1000.0 MiB        0 B\n"
      "host, staging                   -   256.0 MiB  128.0 MiB\n"
      "\n"
      "disk traffic          read  predicted   written  predicted\n"
      "parameter shards       0 B          -   1.0 GiB          -\n"
      "optimizer tiles   20.0 GiB   20.0 GiB  16.0 GiB          -\n"
      "\n"
      "disk traffic, in a step     read  predicted    written  predicted\n"
      "parameter shards             0 B        0 B   50.0 MiB        0 B\n"
      "optimizer tiles          1.0 GiB    1.0 GiB  750.0 MiB  900.0 MiB\n"
      "\n"
      "drive         engine      read  written    busy  of its limit  requests  repeated  99 % within  "
      "endurance left    lasts\n"
      "/mnt/nvme0  io_uring  18.6 GiB  9.3 GiB    80 %          75 %     40000         2      1.50 ms       "
      "545.7 TiB  69 days\n"
      "/mnt/nvme1   threads       0 B      0 B  0.00 %             -         0         0      0.00 ms       "
      "        -        -\n"
      "\n"
      "drive, in a step     read  predicted    written  predicted     busy  predicted\n"
      "/mnt/nvme0        1.0 GiB    1.0 GiB  800.0 MiB  900.0 MiB  4000 ms    4100 ms\n"
      "\n"
      "would help most: disks twice as fast (25 % less time), then 25 % more host budget (5.00 % less time); "
      "a step takes 5 s as simulated, and has taken 4.9 s\n");
}

TEST(RunReport, HasNoRatesWhereTheTimeIsNotKnown) {
  RunReport report = example();
  report.elapsed = {};
  report.steps = 0;
  report.stalls.resize(1);
  report.memory.clear();
  report.traffic.clear();
  report.drives.resize(1);
  report.changes.clear();
  report.changes_note = "no step has ended";
  EXPECT_EQ(
      to_text(report),
      "rank 3, callers waited 12 s, peak of the process 3.0 GiB\n"
      "\n"
      "callers waited for    time  of the run\n"
      "parameters          2.00 s           -\n"
      "\n"
      "drive         engine      read  written  busy  of its limit  requests  repeated  99 % within  "
      "endurance left  lasts\n"
      "/mnt/nvme0  io_uring  18.6 GiB  9.3 GiB     -             -     40000         2      1.50 ms       "
      "545.7 TiB      -\n"
      "\n"
      "drive, in a step     read  predicted    written  predicted     busy  predicted\n"
      "/mnt/nvme0        1.0 GiB    1.0 GiB  800.0 MiB  900.0 MiB  4000 ms    4100 ms\n"
      "\n"
      "what would help: no step has ended\n");
}

TEST(RunReport, TellsNothingThatWasReadFromNothingThatIsPredicted) {
  RunReport report = example();
  report.predicted_step_traffic = {};
  report.predicted_step = {};
  report.drives.resize(1);
  report.drives[0].step.read = {};
  report.drives[0].predicted_step = {};
  Json::Value json;
  std::istringstream(to_json(report)) >> json;

  EXPECT_NE(
      to_text(report).find("/mnt/nvme0         0 B          -  800.0 MiB          -  4000 ms          -\n"),
      std::string::npos)
      << to_text(report);
  for (const char* const unknown : {"predicted_step", "predicted_step_traffic"})
    EXPECT_TRUE(json[unknown].isNull()) << unknown;
  EXPECT_TRUE(json["traffic"][0]["predicted_step"].isNull());
  EXPECT_TRUE(json["drives"][0]["predicted_step"].isNull());
  EXPECT_EQ(json["drives"][0]["step"]["read"].asUInt64(), 0u);
}

TEST(RunReport, HasNoFiguresOfAStepBeforeTwoHaveEnded) {
  RunReport report = example();
  report.step_traffic = {};
  report.drives.resize(1);
  report.drives[0].step = {};

  EXPECT_NE(to_text(report).find("/mnt/nvme0           -    1.0 GiB        -  900.0 MiB     -    4100 ms\n"),
            std::string::npos)
      << to_text(report);
}

TEST(RunReport, HasNothingLeftOfAnEnduranceThatIsExceeded) {
  RunReport report = example();
  report.drives.resize(1);
  report.drives[0].endurance = report.drives[0].written - 1_B;
  EXPECT_NE(to_text(report).find("  0 B  0.00 minutes"), std::string::npos) << to_text(report);
}

TEST(RunReport, HasTheShareOfALimitThatIsKnown) {
  const RunReport report = example();
  EXPECT_EQ(report.drives[0].share_of_limit(report.elapsed), 0.75);
  EXPECT_EQ(report.drives[1].share_of_limit(report.elapsed), 0);
}

TEST(RunReport, IsJson) {
  Json::Value json;
  std::istringstream(to_json(example())) >> json;

  EXPECT_EQ(json["rank"], 3);
  EXPECT_EQ(json["elapsed"].asDouble(), 100);
  EXPECT_EQ(json["steps"], 20);
  EXPECT_EQ(json["step"].asDouble(), 4.9);
  EXPECT_EQ(json["predicted_step"].asDouble(), 5);
  EXPECT_EQ(json["step_traffic"]["read"].asUInt64(), 1u << 30);
  EXPECT_EQ(json["step_traffic"]["written"].asUInt64(), 800u << 20);
  EXPECT_EQ(json["predicted_step_traffic"]["read"].asUInt64(), 1u << 30);
  EXPECT_EQ(json["predicted_step_traffic"]["written"].asUInt64(), 900u << 20);
  EXPECT_EQ(json["stalled"].asDouble(), 12.5);
  ASSERT_EQ(json["stalls"].size(), 2u);
  EXPECT_EQ(json["stalls"][1]["cause"], "update");
  EXPECT_EQ(json["stalls"][1]["time"].asDouble(), 10.5);
  EXPECT_EQ(json["changes"][0]["what"], "disks twice as fast");
  EXPECT_EQ(json["changes"][0]["saves"].asDouble(), 0.25);
  EXPECT_EQ(json["changes_note"], "a step takes 5 s as simulated, and has taken 4.9 s");
  EXPECT_EQ(json["drives"][0]["busy"].asDouble(), 80);
  EXPECT_EQ(json["resident_peak"].asUInt64(), std::uint64_t{3} << 30);
  ASSERT_EQ(json["memory"].size(), 2u);
  EXPECT_EQ(json["memory"][0]["tier"], "device");
  EXPECT_EQ(json["memory"][0]["purpose"], "gathered flats");
  EXPECT_EQ(json["memory"][0]["predicted"].asUInt64(), std::uint64_t{1} << 30);
  EXPECT_EQ(json["memory"][0]["peak"].asUInt64(), std::uint64_t{1000} << 20);
  EXPECT_EQ(json["memory"][1]["held"].asUInt64(), std::uint64_t{128} << 20);
  ASSERT_EQ(json["traffic"].size(), 2u);
  EXPECT_EQ(json["traffic"][1]["read"].asUInt64(), std::uint64_t{20} << 30);
  EXPECT_EQ(json["traffic"][1]["predicted_read"].asUInt64(), std::uint64_t{20} << 30);
  EXPECT_EQ(json["traffic"][1]["written"].asUInt64(), std::uint64_t{16} << 30);
  EXPECT_EQ(json["traffic"][1]["predicted_written"].asUInt64(), 0u);
  EXPECT_EQ(json["traffic"][0]["step"]["written"].asUInt64(), 50u << 20);
  EXPECT_EQ(json["traffic"][1]["step"]["read"].asUInt64(), 1u << 30);
  EXPECT_EQ(json["traffic"][1]["predicted_step"]["written"].asUInt64(), 900u << 20);
  ASSERT_EQ(json["drives"].size(), 2u);
  EXPECT_EQ(json["drives"][0]["latency_99"].asDouble(), 0.0015);
  EXPECT_EQ(json["drives"][0]["limit"].asDouble(), 400e6);
  EXPECT_EQ(json["drives"][0]["requests"], 40'000);
  EXPECT_EQ(json["drives"][0]["repeated"], 2);
  EXPECT_EQ(json["drives"][0]["endurance"].asUInt64(), 600'000'000'000'000u);
  EXPECT_EQ(json["drives"][0]["share_of_limit"].asDouble(), 0.75);
  EXPECT_EQ(json["drives"][0]["step"]["read"].asUInt64(), 1u << 30);
  EXPECT_EQ(json["drives"][0]["step"]["written"].asUInt64(), 800u << 20);
  EXPECT_EQ(json["drives"][0]["step"]["busy"].asDouble(), 4);
  EXPECT_EQ(json["drives"][0]["predicted_step"]["written"].asUInt64(), 900u << 20);
  EXPECT_EQ(json["drives"][0]["predicted_step"]["busy"].asDouble(), 4.1);
  for (const char* const unknown : {"limit", "share_of_limit", "endurance"})
    EXPECT_TRUE(json["drives"][1][unknown].isNull()) << unknown;
  EXPECT_EQ(json["drives"][1]["engine"], "threads");
}

/// Each metric has its help and its type before its samples, which follow each other; names, labels and values have
/// the form of https://prometheus.io/docs/instrumenting/exposition_formats/.
void expect_metrics(const std::string& text) {
  static const std::regex help(R"(# HELP (penstock_[a-z0-9_]+) [^\n]+)"),
      type(R"(# TYPE (\S+) (counter|gauge))"),
      sample(R"re((\S+)\{rank="\d+"(,[a-z]+="([^"\\]|\\["\\n])*")*\} [0-9.e+-]+)re");
  std::istringstream lines(text);
  std::string line, name, declared;
  std::set<std::string> metrics, samples;
  while (std::getline(lines, line)) {
    std::smatch match;
    if (std::regex_match(line, match, help)) {
      name = match[1];
      EXPECT_TRUE(metrics.insert(name).second) << name;
    } else if (std::regex_match(line, match, type)) {
      EXPECT_EQ(match[1], name);
      declared = name;
      EXPECT_EQ(name.ends_with("_total"), match[2] == "counter") << name;
    } else {
      ASSERT_TRUE(std::regex_match(line, match, sample)) << line;
      EXPECT_EQ(match[1], declared);
      EXPECT_TRUE(samples.insert(line.substr(0, line.find('}'))).second) << line;
    }
  }
}

TEST(RunReport, IsMetrics) {
  const std::string text = to_prometheus(example());

  expect_metrics(text);
  EXPECT_TRUE(text.ends_with("\n"));
  for (const char* const line : {
           "penstock_elapsed_seconds{rank=\"3\"} 100\n",
           "penstock_step_seconds{rank=\"3\"} 4.9\n",
           "penstock_predicted_step_seconds{rank=\"3\"} 5\n",
           "penstock_step_read_bytes{rank=\"3\"} 1073741824\n",
           "penstock_step_written_bytes{rank=\"3\"} 838860800\n",
           "penstock_predicted_step_read_bytes{rank=\"3\"} 1073741824\n",
           "penstock_predicted_step_written_bytes{rank=\"3\"} 943718400\n",
           "penstock_stall_seconds_total{rank=\"3\"} 12.5\n",
           "penstock_memory_peak_bytes{rank=\"3\",tier=\"device\",purpose=\"gathered flats\"} 1048576000\n",
           "penstock_memory_predicted_bytes{rank=\"3\",tier=\"host\",purpose=\"staging\"} 0\n",
           "penstock_memory_bytes{rank=\"3\",tier=\"host\",purpose=\"staging\"} 134217728\n",
           "penstock_predicted_read_bytes{rank=\"3\",purpose=\"optimizer tiles\"} 21474836480\n",
           "penstock_written_bytes_total{rank=\"3\",purpose=\"optimizer tiles\"} 17179869184\n",
           "penstock_purpose_step_read_bytes{rank=\"3\",purpose=\"optimizer tiles\"} 1073741824\n",
           "penstock_purpose_step_written_bytes{rank=\"3\",purpose=\"parameter shards\"} 52428800\n",
           "penstock_purpose_predicted_step_read_bytes{rank=\"3\",purpose=\"optimizer tiles\"} 1073741824\n",
           "penstock_purpose_predicted_step_written_bytes{rank=\"3\",purpose=\"optimizer tiles\"} "
           "943718400\n",
           "# TYPE penstock_drive_requests_total counter\n",
           "penstock_drive_requests_total{rank=\"3\",path=\"0\",directory=\"/mnt/nvme0\"} 40000\n",
           "penstock_drive_latency_99_seconds{rank=\"3\",path=\"0\",directory=\"/mnt/nvme0\"} 0.0015\n",
           "penstock_drive_limit_bytes_per_second{rank=\"3\",path=\"0\",directory=\"/mnt/nvme0\"} 4e+08\n",
           "penstock_drive_endurance_bytes{rank=\"3\",path=\"1\",directory=\"/mnt/nvme1\"} 0\n",
           "penstock_drive_step_read_bytes{rank=\"3\",path=\"0\",directory=\"/mnt/nvme0\"} 1073741824\n",
           "penstock_drive_step_written_bytes{rank=\"3\",path=\"0\",directory=\"/mnt/nvme0\"} 838860800\n",
           "penstock_drive_step_busy_seconds{rank=\"3\",path=\"0\",directory=\"/mnt/nvme0\"} 4\n",
           "penstock_drive_predicted_step_written_bytes{rank=\"3\",path=\"0\",directory=\"/mnt/nvme0\"} "
           "943718400\n",
           "penstock_drive_predicted_step_busy_seconds{rank=\"3\",path=\"0\",directory=\"/mnt/nvme0\"} 4.1\n",
       }) {
    EXPECT_NE(text.find(line), std::string::npos) << line;
  }
}

TEST(RunReport, EscapesTheNamesOfDirectories) {
  const RunReport::Drive drive{.directory = "a\"b\\c\nd", .engine = "threads"};
  const std::string text = to_prometheus({.drives = {drive, drive}});  // two paths of one name

  expect_metrics(text);
  EXPECT_NE(text.find(R"(directory="a\"b\\c\nd")"), std::string::npos) << text;
  Json::Value json;
  std::istringstream(to_json({.drives = {drive}})) >> json;
  EXPECT_EQ(json["drives"][0]["directory"], "a\"b\\c\nd");
  EXPECT_NE(to_text({.drives = {drive}}).find(R"(a"b\c\x0ad)"), std::string::npos);
  EXPECT_NE(to_prometheus({.drives = {{.directory = "a\xff\xc3\xa4\xc3"}}})
                .find("directory=\"a\uFFFD\u00e4\uFFFD\""),
            std::string::npos);
}

TEST(RunReport, OfARuntimeHasWhatItHasMoved) {
  const ScratchDirectory scratch;
  const auto runtime = swap::Runtime::create({.host_budget = 1_MiB,
                                              .paths = {{.directory = scratch.path(), .capacity = 1_MiB}}})
                           .value();
  tiers::TensorDescription description{
      .name = "tensor", .key = {.unit = 1}, .size = 256_KiB, .write_behind = true};
  description.purpose = Purpose::parameter_shard;
  const auto tensor = runtime->add(description, /*on_disk=*/true).value();
  runtime->ledger().predict_traffic(Purpose::parameter_shard, {}, 256_KiB);
  runtime->ledger().predict(Tier::host, Purpose::optimizer_tile, 8_KiB);
  runtime->acquire(tensor, swap::Access::overwrite).value().end();
  runtime->flush().value();

  const RunReport report = report_of(*runtime, {.rank = 2,
                                                .elapsed = std::chrono::seconds(1),
                                                .drives = {{.directory = "other", .limit = 1},
                                                           {.directory = scratch.path(), .limit = 1e9}}});

  EXPECT_EQ(report.rank, 2u);
  EXPECT_GT(report.resident_peak, 1_MiB);
  EXPECT_EQ(report.traffic,
            (std::vector<RunReport::Traffic>{{Purpose::parameter_shard, 0_B, 0_B, 256_KiB, 256_KiB}}));
  ASSERT_EQ(report.drives.size(), 1u);
  EXPECT_EQ(report.drives[0].directory, scratch.path().string());
  EXPECT_EQ(report.drives[0].written, 256_KiB);
  EXPECT_GT(report.drives[0].requests, 0u);
  EXPECT_GT(report.drives[0].latency_99, TimePoint());
  EXPECT_EQ(report.drives[0].limit, 1e9);
  const auto memory_of = [&](Tier tier, Purpose purpose) -> const RunReport::Memory* {
    for (const auto& one : report.memory) {
      if (one.tier == tier && one.purpose == purpose) return &one;
    }
    return nullptr;
  };
  ASSERT_NE(memory_of(Tier::nvme, Purpose::parameter_shard), nullptr);
  EXPECT_EQ(memory_of(Tier::nvme, Purpose::parameter_shard)->held, 256_KiB);
  ASSERT_NE(memory_of(Tier::host, Purpose::optimizer_tile), nullptr)
      << "it is predicted, although nothing has it";
  EXPECT_EQ(memory_of(Tier::host, Purpose::optimizer_tile)->predicted, 8_KiB);
  EXPECT_EQ(memory_of(Tier::device, Purpose::scratch), nullptr);
}

TEST(RunReport, ReplacesAFileAtOnce) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "report";
  for (const auto& [format, text] : {std::pair{ReportFormat::text, to_text(example())},
                                     {ReportFormat::json, to_json(example())},
                                     {ReportFormat::prometheus, to_prometheus(example())}}) {
    save_report(example(), file, format).value();
    EXPECT_EQ(contents(file), text);
    EXPECT_EQ(scratch.entry_count(), 1u);
  }
  constexpr ReportFormat formats[] = {ReportFormat::text, ReportFormat::json, ReportFormat::prometheus};
  for (const RunReport& earlier : {example(), RunReport()}) {
    for (const ReportFormat one : formats) {
      for (const ReportFormat other : formats) {
        save_report(earlier, file, one).value();
        EXPECT_TRUE(save_report(example(), file, other));
      }
    }
  }
  fs::create_hard_link(file, scratch.path() / "earlier");
  save_report({}, file, ReportFormat::text).value();
  EXPECT_EQ(contents(scratch.path() / "earlier"), to_prometheus(example())) << "a reader may have it open";
  EXPECT_NE(fs::status(file).permissions() & fs::perms::group_read, fs::perms::none) << "as the umask says";
}

TEST(RunReport, IsWholeWhereSeveralThreadsWriteOneFile) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "report.json";
  std::ofstream(scratch.path() / "report.json.new") << "of the user";
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 100; ++j) {
        save_report(example(), file, ReportFormat::json).value();
        EXPECT_EQ(contents(file), to_json(example()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(scratch.entry_count(), 2u);
  EXPECT_EQ(contents(scratch.path() / "report.json.new"), "of the user");
}

TEST(RunReport, KeepsLinksAndPermissionsOfItsFileAndReplacesNothingElse) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "report", link = scratch.path() / "link",
                 pipe = scratch.path() / "pipe";
  std::ofstream(file) << to_text({});
  fs::permissions(file, fs::perms::owner_read | fs::perms::owner_write);
  fs::create_symlink("report", link);
  save_report(example(), link, ReportFormat::text).value();
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_EQ(contents(file), to_text(example()));
  EXPECT_EQ(fs::status(file).permissions(), fs::perms::owner_read | fs::perms::owner_write);

  fs::create_symlink("later", scratch.path() / "link2");
  save_report(example(), scratch.path() / "link2", ReportFormat::text).value();
  EXPECT_TRUE(fs::is_symlink(scratch.path() / "link2"));
  EXPECT_EQ(contents(scratch.path() / "later"), to_text(example()));

  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const auto saved = save_report(example(), pipe, ReportFormat::text);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(RunReport, ReplacesNoOtherFile) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "ds_config.json";
  std::ofstream(file) << "{\n  \"train_batch_size\": 8\n}";

  const auto saved = save_report(example(), file, ReportFormat::json);

  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), ErrorCode::already_exists);
  EXPECT_EQ(contents(file), "{\n  \"train_batch_size\": 8\n}");
}

TEST(RunReport, NamesAFileThatCannotBeWritten) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "none" / "report";
  const auto saved = save_report(example(), file, ReportFormat::text);
  ASSERT_FALSE(saved);
  EXPECT_EQ(saved.error().code(), ErrorCode::not_found);
  EXPECT_NE(saved.error().message().find(file.string()), std::string::npos) << saved.error().message();
  EXPECT_EQ(save_report(example(), "", ReportFormat::text).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(save_report(example(), scratch.path() / "", ReportFormat::text).error().code(),
            ErrorCode::invalid_argument);
  EXPECT_EQ(scratch.entry_count(), 0u);
  fs::create_directory(scratch.path() / "directory");
  EXPECT_FALSE(save_report(example(), scratch.path() / "directory", ReportFormat::text));
  EXPECT_EQ(scratch.entry_count(), 1u) << "what was written first is removed";
}

}  // namespace
}  // namespace penstock::zero
