#include "zero/estimate/layout_file.hpp"

#include "kit/safetensors_bytes.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>

namespace penstock::zero::estimate {
namespace {

Result<ModelLayout> parse(const std::string& text) {
  return LayoutFile::parse(text, "model.json");
}

std::string unit_with(const std::string& parameter) {
  return R"({"units": [{"name": "u", "parameters": [)" + parameter + "]}]}";
}

TEST(LayoutFile, GivesTheLayoutThatItDescribes) {
  const auto layout = parse(R"({
    // a comment
    "units": [
      {"name": "embedding", "parameters": [{"name": "tokens", "shape": [100, 8]}]},
      {"name": "block", "repeat": 3, "parameters": [{"name": "up", "shape": [8, 32]},
                                                    {"name": "norm", "count": 8, "group": 2}]},
      {"name": "head", "shared": [{"unit": "embedding", "parameter": "tokens"}]},
    ],
    "checkpoints": {"count": 3, "size": "16KiB", "reads": 2}
  })");

  ASSERT_TRUE(layout) << layout.error().message();
  ASSERT_EQ(layout->units.size(), 5u);
  EXPECT_EQ(layout->units[3].name, "block.2");
  EXPECT_EQ(layout->element_count(), ElementCount(800 + 3 * (256 + 8)));
  EXPECT_EQ(layout->groups.size(), 3u);
  EXPECT_EQ(layout->units[3].parameters[1].group, 2u);
  EXPECT_EQ(layout->units[4].shared, (std::vector<ParameterId>{{0, 0}}));
  EXPECT_EQ(layout->checkpoints.count, 3u);
  EXPECT_EQ(layout->checkpoints.size, 16_KiB);
  EXPECT_EQ(layout->checkpoints.leased_max, 2u);
  EXPECT_EQ(layout->checkpoints.reads, 2u);
}

TEST(LayoutFile, LetsAUnitShareWhatALaterOneOwns) {
  const auto layout = parse(R"({"units": [
    {"name": "a", "shared": [{"unit": "b", "parameter": "w"}]},
    {"name": "b", "parameters": [{"name": "w", "count": 5}]}]})");

  ASSERT_TRUE(layout) << layout.error().message();
  EXPECT_EQ(layout->units[0].shared, (std::vector<ParameterId>{{1, 0}}));
}

TEST(LayoutFile, SaysEachErrorWithItsPathAndLine) {
  const auto layout = parse(R"({
    "units": [
      {"nam": "a", "parameters": [{"name": "w", "count": 0}]},
      {"name": "b", "parameters": [{"name": "w", "shape": [2, -1]},
                                   {"name": "v"}]}
    ]
  })");

  ASSERT_FALSE(layout);
  EXPECT_EQ(layout.error().code(), ErrorCode::invalid_config);
  const std::string message = layout.error().message();
  for (const char* words :
       {"the layout cannot be used: 5 errors: model.json",
        "units[0].nam, line 3: unknown key; did you mean \"name\"?", "units[0].name, line 3: wanted a name",
        "units[0].parameters[0].count, line 3: wanted a whole number from 1",
        "units[1].parameters[0].shape[1], line 4: wanted a whole number from 1",
        "units[1].parameters[1], line 5: wanted either \"count\" or \"shape\""}) {
    EXPECT_NE(message.find(words), std::string::npos) << words << "\n" << message;
  }
}

TEST(LayoutFile, RefusesWhatNoLayoutHas) {
  for (const auto& [text, words] : {
           std::pair<std::string, std::string>{"", "cannot be used"},
           {"[]", "wanted an object"},
           {"{", "cannot be used"},
           {"{}", "wanted a list of at least one unit"},
           {R"({"units": []})", "wanted a list of at least one unit"},
           {R"({"units": {"name": "a"}})", "wanted a list of at least one unit"},
           {R"({"units": [7]})", "units[0], line 1: wanted an object"},
           {R"({"unit": []})", "did you mean \"units\"?"},
           {R"({"units": [{"name": "a"}]})", "wanted at least one parameter"},
           {R"({"units": [{"name": "a", "parameters": {}}]})", "wanted a list of parameters"},
           {R"({"units": [{"name": "a", "shared": 7, "parameters": [{"name": "w", "count": 1}]}]})",
            "units[0].shared, line 1: wanted a list"},
           {unit_with("7"), "parameters[0], line 1: wanted an object"},
           {unit_with(R"({"name": "", "count": 1})"), "wanted a name that is not empty"},
           {unit_with(R"({"name": 7, "count": 1})"), "wanted a name that is not empty"},
           {unit_with(R"({"name": "w", "count": 1, "shape": [1]})"), "either \"count\" or \"shape\""},
           {unit_with(R"({"name": "w", "count": 1.5})"), "wanted a whole number"},
           {unit_with(R"({"name": "w", "count": "1"})"), "wanted a whole number"},
           {unit_with(R"({"name": "w", "count": 68719476737})"), "to 68719476736"},
           {unit_with(R"({"name": "w", "shape": []})"), "wanted a list of at least one dimension"},
           {unit_with(R"({"name": "w", "shape": 7})"), "wanted a list of at least one dimension"},
           {unit_with(R"({"name": "w", "shape": [1048576, 1048576]})"),
            "wanted at most 68719476736 elements"},
           {unit_with(R"({"name": "w", "count": 1, "group": 65536})"), "from 0 to 65535"},
           {unit_with(R"({"name": "w", "count": 1}, {"name": "w", "count": 1})"),
            "another parameter of this name"},
           {R"({"units": [{"name": "a", "repeat": 0, "parameters": [{"name": "w", "count": 1}]}]})",
            "units[0].repeat"},
           {R"({"units": [{"name": "a", "repeat": 1000000, "parameters": [{"name": "w", "count": 1}]}]})",
            "at most 1048576 units and parameters"},
           {R"({"units": [{"name": "a", "parameters": [{"name": "w", "count": 1}]},
                          {"name": "a", "parameters": [{"name": "w", "count": 1}]}]})",
            "another unit has the name \"a\""},
           {R"({"units": [{"name": "a", "shared": [{"unit": "a", "parameter": "w"}],
                           "parameters": [{"name": "w", "count": 1}]}]})",
            "share a parameter with itself"},
           {R"({"units": [{"name": "a", "parameters": [{"name": "w", "count": 1}]},
                          {"name": "b", "shared": [{"unit": "a", "parameter": "w"},
                                                   {"unit": "a", "parameter": "w"}]}]})",
            "units[1].shared[1], line 3: the unit shares this parameter already"},
           {R"({"units": [{"name": "aaaa", "parameters": [{"name": "w", "count": 1}]},
                          {"name": "b", "shared": [{"unit": "aaab", "parameter": "w"}]}]})",
            "no unit has this name; did you mean \"aaaa\"?"},
           {R"({"units": [{"name": "a", "parameters": [{"name": "w", "count": 1}]},
                          {"name": "b", "shared": [{"unit": "a", "parameter": "v"}]}]})",
            "has no parameter of this name"},
           {R"({"units": [{"name": "b", "shared": [7]}]})", "units[0].shared[0], line 1: wanted an object"},
           {R"({"units": [{"name": "a", "parameters": [{"name": "w", "count": 1}]}],
                "checkpoints": {"count": 1, "size": 0}})",
            "or a size such as \"16 MiB\", got 0"},
           {R"({"units": [{"name": "a", "parameters": [{"name": "w", "count": 1}]}],
                "checkpoints": {"count": 0, "size": 1}})",
            "checkpoints.count"},
           {R"({"units": [{"name": "a", "parameters": [{"name": "w", "count": 1}]}],
                "checkpoints": {"count": 1, "size": "1 parsec"}})",
            "checkpoints.size"},
           {R"({"units": [{"name": "a", "parameters": [{"name": "w", "count": 1}]}],
                "checkpoints": {"count": 1}})",
            "checkpoints.size"},
           {std::string("{\0}", 3), "NUL"},
       }) {
    const auto layout = parse(text);

    ASSERT_FALSE(layout) << text;
    EXPECT_NE(layout.error().message().find(words), std::string::npos) << text << "\n"
                                                                       << layout.error().message();
  }
}

TEST(LayoutFile, NamesTheGroupsThatAreFrozen) {
  const std::string units = R"({"units": [{"name": "u", "parameters": [
      {"name": "base", "count": 4, "group": 2}, {"name": "adapter", "count": 4}]}], "frozen_groups": )";
  const ModelLayout layout = LayoutFile::parse(units + "[2]}", "test").value();
  ASSERT_EQ(layout.groups.size(), 3u);
  EXPECT_FALSE(layout.groups[0].frozen);
  EXPECT_TRUE(layout.groups[2].frozen);
  for (const char* wrong : {"2}", "[1]}", "[3]}", "[-1]}", "[true]}", "{}}"}) {
    const auto refused = LayoutFile::parse(units + wrong, "test");
    ASSERT_FALSE(refused) << wrong;
    EXPECT_NE(refused.error().message().find("frozen_groups"), std::string::npos)
        << refused.error().message();
  }
  const auto other = LayoutFile::parse(units + "[1]}", "test");
  EXPECT_NE(other.error().message().find("wanted a group that a parameter has (0, 2), got 1"),
            std::string::npos)
      << other.error().message();
  const auto none =
      LayoutFile::parse(R"({"units": [{"name": "u", "parameters": [7]}], "frozen_groups": [0]})", "test");
  EXPECT_EQ(none.error().message().find("frozen_groups"), std::string::npos) << none.error().message();
}

TEST(LayoutFile, StopsAfterTwentyErrors) {
  std::string units;
  for (int i = 0; i < 1000; ++i) units += "7, ";
  const auto layout = parse("{\"units\": [" + units + "]}");

  ASSERT_FALSE(layout);
  EXPECT_NE(layout.error().message().find("20 errors"), std::string::npos);
}

TEST(LayoutFile, ReadsAFileOfAtMost16MiB) {
  test::ScratchDirectory directory;
  const auto path = directory.path() / "model.json";

  EXPECT_TRUE(LayoutFile::read(test::write_file(path, unit_with(R"({"name": "w", "count": 1})"))));
  EXPECT_EQ(LayoutFile::read(directory.path() / "none").error().code(), ErrorCode::not_found);
  const auto long_file = LayoutFile::read(test::write_file(path, std::string((16 << 20) + 1, ' ')));
  ASSERT_FALSE(long_file);
  EXPECT_NE(long_file.error().message().find("too long for a layout"), std::string::npos);
}

TEST(LayoutFile, HasTheShapesOfMatricesButOfThoseThatAreNotMuons) {
  const auto rows = [](const std::string& members) {
    const auto layout = parse(unit_with(R"({"name": "w", )" + members + "}"));
    return layout ? layout->parameter({0, 0}).rows() : 99;
  };
  EXPECT_EQ(rows(R"("shape": [2, 3])"), 2u);
  EXPECT_EQ(rows(R"("shape": [2, 3], "use_muon": true)"), 2u);
  EXPECT_EQ(rows(R"("shape": [2, 3], "use_muon": false)"), 0u);
  EXPECT_EQ(rows(R"("shape": [2, 3, 4])"), 0u);
  EXPECT_EQ(rows(R"("count": 6)"), 0u);
  EXPECT_EQ(rows(R"("shape": [2, 3], "use_muon": 1)"), 99u);
}

}  // namespace
}  // namespace penstock::zero::estimate
