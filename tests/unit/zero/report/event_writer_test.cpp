#include "zero/report/event_writer.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::ScratchDirectory;

std::string contents(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

MonitorConfig monitor_in(const ScratchDirectory& scratch) {
  return {.enabled = true, .output_path = (scratch.path() / "out").string(), .job_name = "job"};
}

TEST(CsvWriter, WritesAFileForEachNameAsDeepSpeed) {
  const ScratchDirectory scratch;
  const auto directory = scratch.path() / "out" / "job";
  const auto writer = make_csv_writer(monitor_in(scratch)).value();

  ASSERT_TRUE(writer->write(std::vector<MonitorEvent>{{"Train/Samples/lr", 0.001, 8}, {"my loss", 2.5, 8}}));
  ASSERT_TRUE(writer->write(std::vector<MonitorEvent>{{"Train/Samples/lr", 0.1, 16}}));

  EXPECT_EQ(contents(directory / "Train_Samples_lr.csv"), "step,lr\r\n8,0.001\r\n16,0.1\r\n");
  EXPECT_EQ(contents(directory / "my_loss.csv"), "step,my loss\r\n8,2.5\r\n");
}

TEST(CsvWriter, AddsToAFileThatIsThere) {
  const ScratchDirectory scratch;
  for (const double value : {1.0, 2.0}) {
    const auto writer = make_csv_writer(monitor_in(scratch)).value();
    ASSERT_TRUE(writer->write(std::vector<MonitorEvent>{{"a", value, 1}}));
  }
  EXPECT_EQ(contents(scratch.path() / "out" / "job" / "a.csv"), "step,a\r\n1,1\r\n1,2\r\n");
}

TEST(CsvWriter, QuotesANameThatNeedsIt) {
  const ScratchDirectory scratch;
  const auto writer = make_csv_writer(monitor_in(scratch)).value();
  ASSERT_TRUE(writer->write(std::vector<MonitorEvent>{{"a,\"b\"", 1, 1}}));
  EXPECT_EQ(contents(scratch.path() / "out" / "job" / "a,\"b\".csv"), "step,\"a,\"\"b\"\"\"\r\n1,1\r\n");
}

template <class T>
T read_at(const std::string& bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

/// The records of a file, whose checksums TensorBoard's own reader verifies in tests/package/tensorboard_reader.py.
std::vector<std::string> records_of(const std::string& bytes) {
  std::vector<std::string> records;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = read_at<std::uint64_t>(bytes, at);
    records.push_back(bytes.substr(at + 12, length));
    at += 16 + length;
  }
  return records;
}

TEST(TensorboardWriter, WritesEventsOfProtocolBuffers) {
  const ScratchDirectory scratch;
  const auto writer = make_tensorboard_writer(monitor_in(scratch)).value();
  ASSERT_TRUE(writer->write(std::vector<MonitorEvent>{{"lr", 0.5, 300}}));

  const auto directory = scratch.path() / "out" / "job";
  ASSERT_EQ(std::distance(std::filesystem::directory_iterator(directory), {}), 1);
  const auto file = std::filesystem::directory_iterator(directory)->path();
  EXPECT_TRUE(file.filename().string().starts_with("events.out.tfevents."));
  const auto records = records_of(contents(file));

  ASSERT_EQ(records.size(), 2u);
  // Field 1 is a double of seconds, field 3 a text.
  EXPECT_EQ(records[0][0], 0x09);
  EXPECT_GT(read_at<double>(records[0], 1), 1.7e9);
  EXPECT_EQ(records[0].substr(9),
            "\x1a\x0d"
            "brain.Event:2");
  // Field 2 is the place, 300 = 0b10'0101100; field 5 a summary of one value with a tag and a float.
  EXPECT_EQ(records[1].substr(9), std::string("\x10\xac\x02"
                                              "\x2a\x0b"
                                              "\x0a\x09"
                                              "\x0a\x02"
                                              "lr"
                                              "\x15\x00\x00\x00\x3f",
                                              16));
}

TEST(EventWriters, RefuseADirectoryThatCannotBeMade) {
  const ScratchDirectory scratch;
  std::ofstream(scratch.path() / "out") << "a file";
  for (const auto& made :
       {make_csv_writer(monitor_in(scratch)), make_tensorboard_writer(monitor_in(scratch))}) {
    ASSERT_FALSE(made);
    EXPECT_NE(made.error().message().find("out"), std::string::npos) << made.error().message();
  }
}

TEST(EventWriters, ReturnTheErrorOfTheFile) {
  const ScratchDirectory scratch;
  const auto writer = make_csv_writer(monitor_in(scratch)).value();
  std::filesystem::create_directory(scratch.path() / "out" / "job" / "a.csv");
  const auto written = writer->write(std::vector<MonitorEvent>{{"a", 1, 1}});
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().message().find("a.csv"), std::string::npos) << written.error().message();
}

}  // namespace
}  // namespace penstock::zero
