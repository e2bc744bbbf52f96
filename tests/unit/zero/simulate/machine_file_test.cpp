#include "zero/simulate/machine_file.hpp"

#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <fstream>
#include <string>

namespace penstock::zero::simulate {
namespace {

constexpr const char* disk =
    R"("disk": {"read": 3.4e9, "write": "4 GB", "mixed": "3 GiB", "endurance": "600 TB"})";

std::string refusal_of(const std::string& text) {
  const auto refused = MachineFile::parse(text, "machine.json");
  if (refused) return "";
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_config);
  return refused.error().message();
}

TEST(MachineFile, HasRatesAsNumbersOrSizes) {
  const Machine machine =
      MachineFile::parse(std::string("{") + disk + R"(, "use": {"optimizer_tiles": "5 GB"}})", "m").value();
  EXPECT_EQ(machine.costs.disks[0].rates.read, 3.4e9);
  EXPECT_EQ(machine.costs.disks[0].rates.write, 4e9);
  EXPECT_EQ(machine.costs.disks[0].rates.mixed, 3.0 * (1 << 30));
  EXPECT_EQ(machine.costs.disks[0].endurance, ByteCount(600'000'000'000'000));
  for (std::size_t i = 0; i < tiers::purpose_count; ++i) {
    const bool is_tiles = static_cast<tiers::Purpose>(i) == tiers::Purpose::optimizer_tile;
    EXPECT_EQ(machine.costs.use[i], is_tiles ? 5e9 : 0) << i;
  }
}

TEST(MachineFile, HasWhatStepsOfModelsTake) {
  const Machine machine =
      MachineFile::parse(std::string("{") + disk + R"(, "update": "9 GB", "shared_processor": true,
        "device": {"flops": 1.2e14, "link": "20 GB", "host_copy": 12e9, "update": "1 TB", "memory": "80 GB"},
        "memory": "2 TB"})",
                         "m")
          .value();
  EXPECT_EQ(machine.update, 9e9);
  EXPECT_TRUE(machine.costs.shared_processor);
  EXPECT_EQ(machine.device.flops, 1.2e14);
  EXPECT_EQ(machine.device.link, 20e9);
  EXPECT_EQ(machine.device.host_copy, 12e9);
  EXPECT_EQ(machine.device.update, 1e12);
  EXPECT_EQ(machine.device.memory, ByteCount(80'000'000'000));
  EXPECT_EQ(machine.memory, ByteCount(2'000'000'000'000));
}

TEST(MachineFile, NeedsOnlyADisk) {
  const Machine machine =
      MachineFile::parse("disk: {read: \"1 GB\", write: \"1 GB\", mixed: 1e9}", "m").value();
  EXPECT_TRUE(machine.costs.disks.at(0).endurance.is_zero());
}

TEST(MachineFile, HasSeveralDisks) {
  const Machine alike =
      MachineFile::parse("disk: {read: 3e9, write: 2e9, mixed: 2.5e9, endurance: 1e12, count: 3}", "m")
          .value();
  ASSERT_EQ(alike.costs.disks.size(), 3u);
  EXPECT_EQ(alike.costs.disks[2].rates.read, 3e9);
  EXPECT_EQ(alike.costs.disks[2].endurance, ByteCount(1'000'000'000'000));
  const Machine several =
      MachineFile::parse(
          "disks: [{read: 3e9, write: 2e9, mixed: 2.5e9, count: 2}, {read: 1e9, write: 1e9, "
          "mixed: 1e9}]",
          "m")
          .value();
  ASSERT_EQ(several.costs.disks.size(), 3u);
  EXPECT_EQ(several.costs.disks[1].weight, 2.5 * several.costs.disks[2].weight);  // as their rates of both
  EXPECT_EQ(several.costs.disks[2].rates.read, 1e9);
  const Machine weighed = MachineFile::parse(
                              "disks: [{read: 3e9, write: 2e9, mixed: 2.5e9, weight: 1}, "
                              "{read: 1e9, write: 1e9, mixed: 1e9, weight: 4}]",
                              "m")
                              .value();
  EXPECT_EQ(weighed.costs.disks[0].weight, 1);
  EXPECT_EQ(weighed.costs.disks[1].weight, 4);
}

TEST(MachineFile, NamesTheDiskThatCannotBeUsed) {
  const std::string good = "{read: 1e9, write: 1e9, mixed: 1e9}";
  const std::pair<std::string, const char*> cases[] = {
      {"disks: [" + good + ", {read: 1e9, write: 1e9, mixed: 9e9}]",
       "disks[1].mixed, line 1: wanted at most the sum of disks[1].read and disks[1].write"},
      {"disks: []", "disks, line 1: wanted a list of 1 to 64 objects"},
      {"disks: 3", "disks, line 1: wanted a list of 1 to 64 objects"},
      {"disk: " + good + "\ndisks: [" + good + "]", "disk, line 1: wanted disk or disks, got both"},
      {"disk: {read: 1e9, write: 1e9, mixed: 1e9, count: 0}",
       "disk.count, line 1: wanted a number of disks from 1"},
      {"disk: {read: 1e9, write: 1e9, mixed: 1e9, count: 1e9}",
       "disk.count, line 1: wanted a number of disks from 1"},
      {"disk: {read: 1e9, write: 1e9, mixed: 1e9, weight: -1}",
       "disk.weight, line 1: wanted a number from 1e-06"},
      {"disks: [{read: 1e9, write: 1e9, mixed: 1e9, weight: 1}, " + good + "]",
       "disks, line 1: wanted a weight of each disk or of none"}};
  for (const auto& [text, said] : cases)
    EXPECT_NE(refusal_of(text).find(said), std::string::npos) << said << " in\n" << refusal_of(text);
}

TEST(MachineFile, NamesEveryProblemWithItsLine) {
  const std::string message = refusal_of(
      "{\n\"disk\": {\"reed\": 1, \"read\": -1,\n\"write\": \"fast\", \"mixed\": 1e30},\n\"use\": []\n}");
  for (const char* said :
       {"machine.json", "5 errors", "disk.reed, line 2: unknown key; did you mean \"read\"?",
        "disk.read, line 2: wanted bytes a second, such as \"3.4 GB\", from 64.0 KiB to 931.3 GiB, got -1",
        "disk.write, line 3: wanted bytes a second, such as \"3.4 GB\", from 64.0 KiB to 931.3 GiB, got "
        "\"fast\"",
        "disk.mixed, line 3: wanted bytes", "use, line 4: wanted an object, got []"})
    EXPECT_NE(message.find(said), std::string::npos) << said << " in\n" << message;
}

TEST(MachineFile, NamesAFigureThatIsMissingOnce) {
  const std::string message = refusal_of("disk: {read: 1e9, write: 1e9}");
  EXPECT_NE(message.find("1 error:"), std::string::npos) << message;
  EXPECT_NE(message.find("disk.mixed"), std::string::npos) << message;
}

TEST(MachineFile, ListsTheKeysThatItKnows) {
  const std::string message = refusal_of(std::string("{") + disk + ", \"use\": {\"bananas\": 1}}");
  EXPECT_NE(message.find("use.bananas, line 1: unknown key; wanted one of "), std::string::npos) << message;
  EXPECT_NE(message.find("optimizer_tiles"), std::string::npos) << message;
}

TEST(MachineFile, RefusesWhatIsNoMachine) {
  for (const std::string& text :
       {std::string("[]"), std::string("{}"), std::string("{\"disk\": 3}"), std::string("{"),
        std::string("{\0}", 3), std::string("{") + disk + ", \"use\": {\"tiles\": 1}}",
        std::string(R"({"disk": {"read": 1e9, "write": 1e9, "mixed": 3e9}})"),
        std::string("{") + disk + ", \"gpu\": 1}", std::string("{") + disk + ", \"update\": -1}",
        std::string("{") + disk + ", \"shared_processor\": 1}",
        std::string("{") + disk + ", \"device\": {\"link\": 1e9}}",
        std::string("{") + disk + ", \"device\": {\"flops\": 1e30}}",
        std::string("{") + disk + ", \"device\": {\"flops\": \"fast\"}}",
        std::string("{") + disk + ", \"use\": {\"optimizer_tiles\": 0}}"})
    EXPECT_NE(refusal_of(text), "") << text;
}

// As if a unit was left out, or another one was meant.
TEST(MachineFile, RefusesFiguresThatNothingHas) {
  const auto refuses = [](const std::string& disks, const std::string& others, const char* said) {
    const std::string message = refusal_of("{\"disk\": {" + disks + "}" + others + "}");
    EXPECT_NE(message.find(said), std::string::npos) << said << " in\n" << message;
  };
  const std::string good = R"("read": 3e9, "write": 2e9, "mixed": 2e9)";
  refuses(R"("read": 3.4, "write": 2e9, "mixed": 2e9)", "", "disk.read, line 1: wanted bytes");
  refuses(R"("read": 3e9, "write": "900 TB", "mixed": 2e9)", "", "disk.write, line 1: wanted bytes");
  refuses(R"("read": 3e9, "write": 2e9, "mixed": 9e7)", "", "disk.mixed, line 1: wanted at least 0.05 of");
  refuses(good + R"(, "endurance": 600)", "", "disk.endurance, line 1: wanted bytes");
  refuses(good, R"(, "update": 20)", "update, line 1: wanted bytes");
  refuses(good, R"(, "update": "900 TB")", "update, line 1: wanted bytes");
  refuses(good, R"(, "device": {"flops": 312})", "device.flops, line 1: wanted floating-point operations");
  refuses(good, R"(, "device": {"flops": 1e14, "link": 600})", "device.link, line 1: wanted bytes");
  EXPECT_EQ(refusal_of("{\"disk\": {" + good + "}}"), "");
}

TEST(MachineFile, IsReadFromAFile) {
  const test::ScratchDirectory scratch;
  const auto file = scratch.path() / "machine.json";
  EXPECT_EQ(MachineFile::read(file).error().code(), ErrorCode::not_found);
  std::ofstream(file) << "{" << disk << "}";
  EXPECT_EQ(MachineFile::read(file).value().costs.disks[0].rates.write, 4e9);
}

}  // namespace
}  // namespace penstock::zero::simulate
