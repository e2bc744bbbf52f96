#pragma once

#include "zero/config/json_text.hpp"
#include "zero/config/schema.hpp"

#include <json/json.h>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::config {

/// Reads a parsed file according to the schema: fills the draft and collects problems and notes.
class Reader {
 public:
  /// `lines` outlives the reader. `lenient`: see ConfigFile::Options.
  Reader(const LineIndex& lines, bool lenient, std::vector<Problem>& problems)
      : lines_(lines), lenient_(lenient), problems_(problems) {}

  void read(const Json::Value& root, Draft& draft);

  /// Reports a problem of the key with this canonical path, with its line if the file contains the key.
  void report(std::string_view path, std::string text);
  /// Adds a note about the key.
  void note(std::string_view path, const std::string& text);
  /// Returns the notes in the order of the file.
  [[nodiscard]] std::vector<std::string> take_notes();
  [[nodiscard]] bool has_problem(std::string_view path) const;
  [[nodiscard]] bool was_given(std::string_view path) const { return given_.contains(path); }
  /// Whether the file gives the key a value of its own: neither "auto" nor null.
  [[nodiscard]] bool has_value(std::string_view path) const {
    const Given* const how = given(path);
    return how != nullptr && !how->automatic && !how->is_null;
  }

  /// How a file gives a key.
  struct Given {
    std::string as;  ///< the path as the file spells it
    std::uint32_t line = 0;
    bool automatic = false;  ///< as "auto"
    bool is_null = false;
  };
  /// Null if the file does not have the key with this canonical path.
  [[nodiscard]] const Given* given(std::string_view path) const;
  /// By canonical path.
  [[nodiscard]] const std::map<std::string, Given, std::less<>>& all_given() const { return given_; }

 private:
  void read_block(const Json::Value& object, const std::string& prefix, Draft& draft);
  void read_key(const Key& key, const Json::Value& json, Draft& draft);
  void read_feature(const Key& key, const Json::Value& json);
  /// Of the key at `path`; `neighbours` are the names of the keys in the same block.
  void report_unknown(const std::string& path, const Json::Value& json,
                      std::span<const std::string_view> neighbours);

  const LineIndex& lines_;
  const bool lenient_;
  std::vector<Problem>& problems_;
  std::vector<std::pair<std::uint32_t, std::string>> notes_;
  std::map<std::string, Given, std::less<>> given_;  ///< by canonical path
};

}  // namespace penstock::zero::config
