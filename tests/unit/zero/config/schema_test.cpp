#include "zero/config/schema.hpp"
#include "zero/config/value.hpp"

#include <gtest/gtest.h>
#include <set>
#include <sstream>

namespace penstock::zero::config {
namespace {

Json::Value as_json(std::string_view text) {
  std::istringstream stream(std::string("[").append(text).append("]"));
  Json::Value json;
  stream >> json;
  return json[0];
}

TEST(ConfigTable, HasCompleteRows) {
  for (const Key& key : schema()) {
    if (key.kind == Kind::block && key.status == Status::supported) continue;
    const bool explains = key.status != Status::only_default;
    const bool keeps = key.status == Status::supported || key.status == Status::deprecated;
    EXPECT_TRUE(!explains || !key.help.empty()) << key.path;
    EXPECT_TRUE(!keeps || key.field) << key.path;
    EXPECT_TRUE(key.read_by != Consumer::plan || !key.bytes.empty()) << key.path << ": what does it cost?";
    EXPECT_EQ(key.read_by != Consumer::none, key.status == Status::supported) << key.path;
    if (key.status == Status::no_effect || key.status == Status::removed) {
      EXPECT_FALSE(key.field) << key.path;
    }
    if (key.status == Status::only_default && key.kind != Kind::feature) {
      EXPECT_TRUE(key.field || !key.fallback.empty()) << key.path;
    }
  }
}

TEST(ConfigTable, NamesEachKeyOnceInABlockThatHasARow) {
  std::set<std::string_view> paths;
  for (const Key& key : schema()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
    const std::size_t dot = key.path.rfind('.');
    if (dot == std::string_view::npos) continue;
    const Key* const block = find_key(key.path.substr(0, dot));
    EXPECT_TRUE(block != nullptr && block->kind == Kind::block) << key.path;
  }
  for (const Alias& alias : aliases()) {
    EXPECT_TRUE(paths.insert(alias.path).second) << alias.path;
    EXPECT_NE(find_key(alias.stands_for), nullptr) << alias.path;
  }
}

TEST(ConfigTable, NamesAnExistingKeyForEveryForeignNameAndKnowsNoneAsAKey) {
  for (const ForeignName& name : foreign_names()) {
    EXPECT_NE(find_key(name.key), nullptr) << name.path;
    EXPECT_EQ(find_foreign_name(name.path), &name);
    EXPECT_TRUE(find_key(name.path) == nullptr && find_alias(name.path) == nullptr) << name.path;
  }
}

TEST(ConfigTable, HasDefaultsThatTheReaderTakes) {
  for (const Key& key : schema()) {
    if (!key.fallback.empty() && key.fallback != "null") {
      EXPECT_TRUE(read_value(key, as_json(key.fallback))) << key.path;
    }
    if (!key.field) continue;
    const Json::Value json = write_value(key, key.field.get(Draft()));
    if (json.isNull())
      EXPECT_FALSE(key.unset.empty()) << key.path << " has no default";
    else
      EXPECT_TRUE(read_value(key, json)) << key.path;
  }
}

TEST(ConfigTable, ReadsBackEveryChoiceThatItSets) {
  for (const Key& key : schema()) {
    std::istringstream choices{std::string(key.choices)};
    for (std::string choice; key.field && std::getline(choices, choice, '|');) {
      Draft draft;
      key.field.set(draft, {.text = choice});
      EXPECT_EQ(write_value(key, key.field.get(draft)), Json::Value(choice)) << key.path;
    }
  }
}

}  // namespace
}  // namespace penstock::zero::config
