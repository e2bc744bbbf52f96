// What hjson 3.1.0 for Python reads, with which DeepSpeed reads ds_config.json; and what it reads that is refused here.
#include "zero/config/hjson.hpp"

#include <gtest/gtest.h>
#include <string>

namespace penstock::zero::config {
namespace {

/// The value as JSON, or the problem.
std::string read(std::string_view text) {
  std::vector<Problem> problems;
  const Json::Value json = parse_hjson(text, problems);
  if (problems.empty()) return write_json(json);
  const Problem& problem = problems.front();
  return problem.path + ", line " + std::to_string(problem.line) + ": " + problem.text;
}

/// The value of the key `k`.
std::string read_value(const std::string& text) {
  std::vector<Problem> problems;
  const Json::Value json = parse_hjson("{\n  k: " + text + "\n}", problems);
  return problems.empty() ? write_json(json["k"]) : problems.front().text;
}

TEST(Hjson, NeedsNeitherBracesNorQuotesNorCommas) {
  EXPECT_EQ(read("a: 1\nb: {c: true, d: [1 2\n3,]}\n# the end"),
            "{\n  \"a\": 1,\n  \"b\": {\n    \"c\": true,\n    \"d\": [\"1 2\", 3]\n  }\n}");
  EXPECT_EQ(read(""), "{}");
  EXPECT_EQ(read("\xef\xbb\xbf{'a': \"b\",}"), "{\n  \"a\": \"b\"\n}");
}

TEST(Hjson, ReadsABareWordAsAStringUpToTheEndOfItsLine) {
  EXPECT_EQ(read_value("/local/nvme 1 # no comment"), "\"/local/nvme 1 # no comment\"");
  EXPECT_EQ(read_value("one, two"), "\"one, two\"");
  EXPECT_EQ(read_value("http://host/a\r"), "\"http://host/a\"");
  EXPECT_EQ(read_value("True"), "\"True\"");
  EXPECT_EQ(read_value("trueish"), "\"trueish\"");
  EXPECT_EQ(read_value("null // a comment"), "null");
  EXPECT_EQ(read_value("false/* a comment */"), "false");
  EXPECT_EQ(read_value("1/2"), "\"1/2\"");
}

TEST(Hjson, ReadsNumbersAsJsonWritesThem) {
  EXPECT_EQ(read_value("-1.5e3"), "-1500");
  EXPECT_EQ(read_value("18446744073709551615,"), "18446744073709551615");
  EXPECT_EQ(read_value("1e25 # a comment"), "1e+25");
  for (const char* no_number : {"+8", "008", "1.", ".5", "1e", "0x10", "1f", "-"})
    EXPECT_EQ(read_value(no_number), '"' + std::string(no_number) + '"');
  EXPECT_EQ(read_value("1e400"), "the number 1e400 is beyond double precision");
}

TEST(Hjson, ReadsEscapesAndStringsOfSeveralLines) {
  EXPECT_EQ(read_value(R"('it\'s "\u00e9\ud83d\ude00"\t')"), R"("it's \"\u00e9\ud83d\ude00\"\t")");
  EXPECT_EQ(read_value("'''\n     one\n       two'\n     '''"), R"("one\n  two'")");
  EXPECT_EQ(read_value("'''one'''"), "\"one\"");
}

TEST(Hjson, RefusesABareWordThatContainsWhatWasMeantAsJson) {
  constexpr const char* wanted = "wanted true, false, null, a number, or a string in quotes, got ";
  EXPECT_EQ(read_value("True,"), std::string(wanted) + "True");
  EXPECT_EQ(read("{\"a\": {\"b\": +8}}"),
            "a.b, line 1: wanted a number as JSON writes it, got +8; omit a plus sign and leading zeros, "
            "write digits before and after a point");
  EXPECT_EQ(read("{\"a\": [adam]\n}"), "a, line 1: " + std::string(wanted) + "adam");
}

TEST(Hjson, NamesTheKeyAndTheLineOfAnError) {
  EXPECT_EQ(read("{\n\"a\": 1,\n\"b\": 2,\n\"a\": 3}"), "a, line 4: the key is given twice, first on line 2");
  EXPECT_EQ(read("{\n\"a\": {\n\"b\" 2}"), "a.b, line 3: wanted a colon after the key, got 2}");
  EXPECT_EQ(read("{\"a\": 1"), ", line 1: wanted a key or }, got the end of the text");
  EXPECT_EQ(read("{\"a\": [1,"), "a, line 1: wanted a value or ], got the end of the text");
  EXPECT_EQ(read("{\"a\": \"b\n\"}"), "a, line 1: a string has no end on its line: \"b");
  EXPECT_EQ(read("{\"a\": \"\\q\"}"), "a, line 1: a string contains \\q, which means nothing");
  EXPECT_EQ(read("{\"a\": \"\\ud800\"}"), "a, line 1: a string contains half of a surrogate pair");
  EXPECT_EQ(read("{\"a\": \"\\u12g4\"}"), "a, line 1: wanted four hexadecimal digits after \\u");
  EXPECT_EQ(read("{\"a\": ,}"), "a, line 1: wanted a value, got ,}");
  EXPECT_EQ(read("{\"a\": 1} {"), ", line 1: wanted the end of the text, got {");
  EXPECT_EQ(read("{} /* no end"), ", line 1: a comment has no end");
  EXPECT_EQ(read("{a: '''no end\n"), "a, line 1: a string of several lines has no end: wanted '''");
  EXPECT_EQ(read(std::string(100, '[')), ", line 1: nested too deeply");
}

// As a layout in one line, of a model with many experts. Were the rest of the line searched for each value, this would
// take longer than CTest waits.
TEST(Hjson, ReadsAnyNumberOfValuesOnALine) {
  std::string text = "[";
  constexpr unsigned values = 1'500'000;
  for (unsigned i = 0; i < values; ++i) text += "1,";
  std::vector<Problem> problems;
  const Json::Value list = parse_hjson(text + "]", problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(list.size(), values);
}

TEST(Hjson, KeepsTheOffsetsOfValues) {
  std::vector<Problem> problems;
  const Json::Value json = parse_hjson("# one\na: {b: true\n}", problems);
  EXPECT_EQ(json["a"].getOffsetStart(), 9);
  EXPECT_EQ(json["a"]["b"].getOffsetStart(), 13);
}

}  // namespace
}  // namespace penstock::zero::config
