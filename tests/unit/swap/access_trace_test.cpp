#include <penstock/swap/access_trace.hpp>

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <filesystem>
#include <fstream>
#include <string>

namespace penstock::swap {
namespace {

using ::testing::Test;

AccessTrace small_trace() {
  return {
      .label = "train, step 7",
      .tensors = {{.name = "block3 parameters", .size = 8_MiB, .purpose = tiers::Purpose::parameter_shard},
                  {.name = "block3 tile 0",
                   .size = ByteCount(12345),
                   .purpose = tiers::Purpose::optimizer_tile,
                   .write_behind = true,
                   .retain = false},
                  {.name = "gradient", .size = 4_KiB, .on_disk = false, .transient = true},
                  {.name = "at home", .size = 4_KiB, .write_behind = true, .home_in_memory = true}},
      .uses = {{0, Access::read}, {2, Access::overwrite}, {1, Access::modify}, {0, Access::read}}};
}

void expect_equal(const AccessTrace& one, const AccessTrace& other) {
  EXPECT_EQ(one.label, other.label);
  EXPECT_EQ(one.tensors, other.tensors);
  EXPECT_EQ(one.uses, other.uses);
}

TEST(AccessTrace, IsTheSameAfterItsText) {
  const AccessTrace trace = small_trace();
  EXPECT_EQ(to_text(trace),
            "penstock-trace 1\n"
            "label train, step 7\n"
            "tensor 8388608 disk parameter_shards block3 parameters\n"
            "tensor 12345 disk,write_behind,dropped optimizer_tiles block3 tile 0\n"
            "tensor 4096 memory,transient scratch gradient\n"
            "tensor 4096 disk,write_behind,home scratch at home\n"
            "use 0 read\n"
            "use 2 overwrite\n"
            "use 1 modify\n"
            "use 0 read\n"
            "end 4\n");
  expect_equal(parse_trace(to_text(trace)).value(), trace);
}

TEST(AccessTrace, MayHaveCommentsAndNoLabel) {
  const auto trace = parse_trace("penstock-trace 1\n# by hand\n\ntensor 1 disk scratch a\nuse 0 read\nend 1");
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->label, "");
  EXPECT_EQ(trace->uses, (std::vector<AccessTrace::Use>{{0, Access::read}}));
}

TEST(AccessTrace, MayHaveLineEndsOfWindows) {
  const auto trace =
      parse_trace("penstock-trace 1\r\nlabel a\r\n\r\ntensor 1 disk scratch b\r\nuse 0 read\r\nend 1\r\n");
  ASSERT_TRUE(trace) << trace.error().message();
  EXPECT_EQ(trace->label, "a");
  EXPECT_EQ(trace->tensors[0].name, "b");
  EXPECT_EQ(trace->uses.size(), 1u);
}

TEST(AccessTrace, IsRefusedWithTheLineThatIsWrong) {
  const auto refusal = [](const std::string& lines) {
    const auto trace = parse_trace(lines);
    return trace ? "none" : trace.error().message();
  };
  const std::string begin = "penstock-trace 1\ntensor 1 disk scratch a\n";
  const auto expect = [&](const std::string& lines, const std::string& text) {
    EXPECT_NE(refusal(lines).find(text), std::string::npos) << refusal(lines);
  };
  expect("", "line 1");
  expect("penstock-trace 2\n",
         "line 1, wanted version 1, which this version of Penstock reads, got \"penstock-trace 2\"");
  expect("{\"units\": 1}", "line 1");
  expect(begin + "tensors 1\n", "line 3, wanted \"label\", \"tensor\", \"use\" or \"end\", got \"tensors\"");
  for (const char* const bytes :
       {"0", "4398046511105", "18446744073709551615", "18446744073709551616", "-1"}) {
    expect(
        begin + "tensor " + bytes + " disk scratch b\n",
        std::string("line 3, wanted its bytes, more than 0, at most 4398046511104, got \"") + bytes + "\"");
  }
  expect(begin + "tensor 1 tape scratch b\n",
         "wanted disk, memory, write_behind, dropped, home or transient, got \"tape\"");
  expect(begin + "tensor 1 disk,memory scratch b\n",
         "wanted disk or memory among its properties, got \"disk,memory\"");
  expect(begin + "tensor 1 dropped scratch b\n", "got \"dropped\"");
  expect(begin + "tensor 1 memory,home scratch b\n", "wanted disk, not memory, with home");
  expect(begin + "label a\nlabel b\n", "line 4, wanted one label");
  expect(begin + "tensor 1 disk tiles b\n", "parameter_shards, gathered_flats");
  expect(begin + "tensor 1 disk scratch\n", "wanted its name");
  expect(begin + "use 1 read\n", "line 3, wanted a tensor of the 1 in the lines before, got \"1\"");
  expect(begin + "use 0 write\n", "wanted read, modify or overwrite, got \"write\"");
  expect(begin + "use 0\n", "wanted read, modify or overwrite");
  expect(begin + "label a\x1b[2J\n", "line 3, wanted a label without control characters");
  expect(begin + "tensor 1 disk scratch a\tb\n", "line 3, wanted its name, without control characters");
  expect(begin + "use 0 read\nend 2\n", "line 4, wanted the number of uses before, 1, got \"2\"");
  expect(begin + "end 0 x\n", "line 3, wanted nothing after the number of uses, got \"x\"");
  expect(begin + "end 0\nuse 0 read\n", "line 4, wanted nothing after the line \"end\"");
  EXPECT_LT(refusal(std::string(100'000, 'x')).size(), 500u);
}

TEST(AccessTrace, IsRefusedWhereverItsFileWasCut) {
  const std::string text = to_text(small_trace());
  for (std::size_t size = 0; size + 1 < text.size(); ++size)
    EXPECT_FALSE(parse_trace(text.substr(0, size))) << text.substr(0, size);
  EXPECT_TRUE(parse_trace(text.substr(0, text.size() - 1)));  // the last line has no end
  const auto cut = parse_trace(text.substr(0, text.find("end")));
  EXPECT_NE(cut.error().message().find("the file was cut"), std::string::npos) << cut.error().message();
}

TEST(AccessTrace, IsCheckedWhereItEnters) {
  const auto expect = [](const AccessTrace& trace, const std::string& text) {
    const auto checked = check_trace(trace);
    ASSERT_FALSE(checked);
    EXPECT_NE(checked.error().message().find(text), std::string::npos) << checked.error().message();
  };
  AccessTrace trace = small_trace();
  trace.label = "two\nlines";
  expect(trace, "label");
  trace = small_trace();
  trace.tensors[1].name = "two\nlines";
  expect(trace, "tensors[1].name");
  trace.tensors[1].name = "a\x1b[2Jb";
  expect(trace, "control character");
  trace.tensors[1].name =
      "a\xc2\x9b"
      "2Jb";
  expect(trace, "control character");
  trace.tensors[1].name = "";
  expect(trace, "tensors[1].name");
  trace = small_trace();
  trace.tensors[2].size = {};
  expect(trace, "tensors[2].size");
  trace = small_trace();
  trace.uses[3].tensor = 4;
  expect(trace, "uses[3].tensor");
  trace = small_trace();
  trace.uses[0].access = static_cast<Access>(3);
  expect(trace, "uses[0].access");
  trace = small_trace();
  trace.tensors[0].purpose = static_cast<tiers::Purpose>(200);
  expect(trace, "tensors[0].purpose");
}

TEST(AccessTrace, DiffersAtTheFirstOtherUse) {
  const AccessTrace expected = small_trace();
  EXPECT_EQ(first_difference(expected, expected), std::nullopt);
  AccessTrace actual = expected;
  actual.label = "eval";
  std::swap(actual.tensors[0], actual.tensors[1]);  // numbers mean nothing
  for (auto& use : actual.uses) use.tensor = use.tensor == 2 ? 2 : 1 - use.tensor;
  EXPECT_EQ(first_difference(expected, actual), std::nullopt);

  actual = expected;
  actual.uses[2].access = Access::read;
  const auto difference = first_difference(expected, actual);
  ASSERT_TRUE(difference);
  EXPECT_EQ(to_string(*difference),
            "use 2: wanted modify of block3 tile 0, 12.1 KiB of optimizer tiles; got read of block3 tile 0, "
            "12.1 KiB of optimizer tiles");
  actual = expected;
  actual.uses.pop_back();
  EXPECT_EQ(first_difference(expected, actual)->got, "the end");
  EXPECT_EQ(first_difference(actual, expected)->wanted, "the end");
  actual = expected;
  actual.tensors[0].size = 4_MiB;
  EXPECT_EQ(first_difference(expected, actual)->use, 0u);
  actual.tensors[0].size = expected.tensors[0].size + 1_B;
  const auto by_a_byte = first_difference(expected, actual);
  EXPECT_NE(by_a_byte->wanted, by_a_byte->got) << by_a_byte->got;
}

// As the configuration says, or the budget.
TEST(AccessTrace, HasTheSameUsesWhereverTensorsAreKept) {
  const AccessTrace expected = small_trace();
  EXPECT_EQ(first_kept_elsewhere(expected, expected), nullptr);
  AccessTrace actual = expected;
  const std::uint32_t number = expected.uses[2].tensor;
  actual.tensors[number].retain = !expected.tensors[number].retain;

  EXPECT_EQ(first_difference(expected, actual), std::nullopt);
  EXPECT_EQ(first_kept_elsewhere(expected, actual), &expected.tensors[number]);
}

TEST(AccessTrace, IsSavedAndLoaded) {
  const test::ScratchDirectory directory;
  const auto file = directory.path() / "train.trace";
  ASSERT_TRUE(save_trace(small_trace(), file));
  expect_equal(load_trace(file).value(), small_trace());

  std::ofstream(file) << "not a trace\n";
  const auto other = load_trace(file);
  ASSERT_FALSE(other);
  EXPECT_NE(other.error().message().find("file  " + file.string()), std::string::npos);
  EXPECT_EQ(load_trace(directory.path() / "none").error().code(), ErrorCode::not_found);
  std::ofstream(file) << "pen";
  EXPECT_NE(load_trace(file).error().message().find("got \"pen\""), std::string::npos);
  const auto huge = directory.path() / "huge";
  std::ofstream(huge) << "penstock-trace 1\n";
  std::filesystem::resize_file(huge, (4ull << 30) + 1);
  EXPECT_NE(load_trace(huge).error().message().find("wanted at most 4.0 GiB"), std::string::npos);
  std::ofstream(huge) << std::string(100, '\0');
  std::filesystem::resize_file(huge, 4ull << 30);
  EXPECT_LT(load_trace(huge).error().message().size(), 500u) << "it is not read";
  std::ofstream(file) << "not a trace\n";
  EXPECT_FALSE(load_trace(directory.path()));
  EXPECT_NE(load_trace("").error().message().find("its name is empty"), std::string::npos);
  EXPECT_EQ(save_trace(small_trace(), file).error().code(), ErrorCode::already_exists);  // it is no trace
  EXPECT_EQ(save_trace(small_trace(), directory.path() / "no" / "file").error().code(), ErrorCode::not_found);
  EXPECT_FALSE(save_trace(small_trace(), "/dev/full"));
  AccessTrace bad = small_trace();
  bad.uses[0].tensor = 9;
  EXPECT_EQ(save_trace(bad, file).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(std::filesystem::file_size(file), 12u);  // untouched
}

}  // namespace
}  // namespace penstock::swap
