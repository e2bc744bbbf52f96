#include "zero/config/json_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <sstream>

namespace penstock::zero::config {

namespace {

/// Overwrites `#` comments with spaces, which JsonCpp does not know, and keeps every offset.
std::string without_hash_comments(std::string_view text) {
  enum class In { code, string, line_comment, hash_comment, block_comment } in = In::code;
  std::string out(text);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const char c = out[i], next = i + 1 < out.size() ? out[i + 1] : '\0';
    switch (in) {
      case In::code:
        if (c == '"') in = In::string;
        if (c == '/' && next == '/') in = In::line_comment;
        if (c == '/' && next == '*') in = In::block_comment, ++i;
        if (c == '#') in = In::hash_comment, out[i] = ' ';
        break;
      case In::string:
        if (c == '\\') ++i;
        // A string ends at the end of its line, so an unterminated one does not hide the following lines.
        if (c == '"' || c == '\n') in = In::code;
        break;
      case In::line_comment:
        if (c == '\n') in = In::code;
        break;
      case In::hash_comment:
        if (c == '\n')
          in = In::code;
        else
          out[i] = ' ';
        break;
      case In::block_comment:
        if (c == '*' && next == '/') in = In::code, ++i;
        break;
    }
  }
  return out;
}

/// The word around a place that JsonCpp names; empty, if there is a sign or the text's end. It may name the end of a
/// word: it reads 1e-3 in 1e-3f as a number.
std::string_view word_at(std::string_view text, std::uint32_t line, std::size_t column) {
  static constexpr std::string_view letters =
      "+-.0123456789_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  static constexpr std::size_t length_max = 32;
  for (; line > 1 && !text.empty(); --line)
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  if (column == 0 || column > text.size()) return {};
  const std::size_t before = text.substr(0, column).find_last_not_of(letters);
  if (before == column - 1) return {};
  text.remove_prefix(before == std::string_view::npos ? 0 : before + 1);
  return text.substr(0, std::min(text.find_first_not_of(letters), length_max));
}

/// The first of JsonCpp's reports on `code`, "* Line 3, Column 5\n  message\n"; the others are consequences of it.
Problem first_syntax_problem(const std::string& report, std::string_view code) {
  static constexpr std::string_view marker = "* Line ", column_marker = ", Column ";
  std::istringstream lines(report);
  Problem problem;
  std::string text;
  std::getline(lines, text);
  if (!text.starts_with(marker)) return {.text = report};
  problem.line = static_cast<std::uint32_t>(std::strtoul(text.c_str() + marker.size(), nullptr, 10));
  const std::size_t at_column = std::min(text.find(column_marker), text.size());
  const std::string column = text.substr(std::min(at_column + column_marker.size(), text.size()));
  std::getline(lines, text);
  problem.text = text.starts_with("  ") ? text.substr(2) : text;
  if (const auto word = word_at(code, problem.line, std::strtoul(column.c_str(), nullptr, 10));
      !word.empty()) {
    if (problem.text.ends_with('.')) problem.text.pop_back();
    problem.text.append(", got ").append(word);
  }
  return problem;
}

/// JSON's grammar of a number. JsonCpp also accepts +8, 008, 1. and the like.
bool is_json_number(std::string_view token) {
  const auto take_digits = [&token] {
    const std::size_t count = std::min(token.find_first_not_of("0123456789"), token.size());
    token.remove_prefix(count);
    return count;
  };
  if (token.starts_with('-')) token.remove_prefix(1);
  const bool begins_with_zero = token.starts_with('0');
  const std::size_t whole = take_digits();
  if (whole == 0 || (whole > 1 && begins_with_zero)) return false;
  if (token.starts_with('.')) {
    token.remove_prefix(1);
    if (take_digits() == 0) return false;
  }
  if (token.starts_with('e') || token.starts_with('E')) {
    token.remove_prefix(1);
    if (token.starts_with('+') || token.starts_with('-')) token.remove_prefix(1);
    if (take_digits() == 0) return false;
  }
  return token.empty();
}

/// Reports the numbers below `json` that are not written as JSON writes them. Elements of a list have the list's path.
void check_numbers(const Json::Value& json, const std::string& path, std::string_view text,
                   const LineIndex& lines, std::vector<Problem>& problems) {
  if (json.isObject()) {
    for (const std::string& name : json.getMemberNames()) {
      check_numbers(json[name], path.empty() ? name : path + "." + name, text, lines, problems);
    }
  } else if (json.isArray()) {
    for (const Json::Value& element : json) check_numbers(element, path, text, lines, problems);
  } else if (json.isNumeric()) {
    const auto begin = static_cast<std::size_t>(json.getOffsetStart());
    const auto token = text.substr(begin, static_cast<std::size_t>(json.getOffsetLimit()) - begin);
    if (is_json_number(token)) return;
    problems.push_back({printable(path), lines.line_of(json.getOffsetStart()),
                        "wanted a number as JSON writes it, got " + std::string(token) +
                            "; omit a plus sign and leading zeros, write digits before and after a point"});
  }
}

std::string write_scalar(const Json::Value& json) {
  if (json.type() == Json::realValue) {
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), json.asDouble()).ptr};
  }
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "";
  return Json::writeString(writer, json);
}

std::string write(const Json::Value& json, const std::string& indentation) {
  if (!json.isObject() && !json.isArray()) return write_scalar(json);
  if (json.empty()) return json.isArray() ? "[]" : "{}";
  const std::string inner = indentation + "  ";
  std::string text;
  for (auto member = json.begin(); member != json.end(); ++member) {
    if (!text.empty()) text += json.isArray() ? ", " : ",";
    if (json.isObject()) text.append("\n").append(inner).append(write_scalar(member.key())).append(": ");
    text += write(*member, inner);
  }
  return json.isArray() ? "[" + text + "]" : "{" + text + "\n" + indentation + "}";
}

}  // namespace

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

std::string write_json(const Json::Value& json) {
  return write(json, "");
}

LineIndex::LineIndex(std::string_view text) : line_starts_{0} {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') line_starts_.push_back(static_cast<std::ptrdiff_t>(i) + 1);
  }
}

std::uint32_t LineIndex::line_of(std::ptrdiff_t offset) const {
  const auto after = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
  return static_cast<std::uint32_t>(after - line_starts_.begin());
}

Json::Value parse_json(std::string_view text, std::vector<Problem>& problems) {
  Json::CharReaderBuilder builder;
  builder["collectComments"] = false;
  builder["allowTrailingCommas"] = true;
  builder["strictRoot"] = true;
  builder["failIfExtra"] = true;
  builder["rejectDupKeys"] = true;
  builder["stackLimit"] = 64;
  const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());

  const std::string code = without_hash_comments(text);
  Json::Value root;
  std::string report;
  try {
    if (reader->parse(code.data(), code.data() + code.size(), &root, &report)) {
      const std::size_t before = problems.size();
      check_numbers(root, {}, code, LineIndex(code), problems);
      if (problems.size() > before) return {};
      return root;
    }
  } catch (const Json::Exception&) {
    report = "nested too deeply";  // JsonCpp throws beyond its stack limit
  }
  problems.push_back(first_syntax_problem(report, code));
  return {};
}

}  // namespace penstock::zero::config
