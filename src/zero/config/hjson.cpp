#include "zero/config/hjson.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

namespace penstock::zero::config {

namespace {

constexpr std::size_t depth_max = 64;
constexpr std::string_view whitespace = " \t\n\r", digits = "0123456789";

/// What ends the parse: thrown and caught in this file only, because every rule of the grammar may fail.
struct SyntaxError {
  std::size_t at;
  std::string text;
  std::string path = {};  // of the key, if it is known
};

/// The longest prefix that is a number of JSON; empty if there is none.
std::string_view number_prefix(std::string_view text) {
  std::size_t end = 0;
  const auto take_digits = [&] {
    const std::size_t begin = end;
    end = std::min(text.find_first_not_of(digits, end), text.size());
    return end - begin;
  };
  const auto at = [&](std::string_view any) { return end < text.size() && any.find(text[end]) != any.npos; };
  if (at("-")) ++end;
  const bool begins_with_zero = at("0");
  const std::size_t whole = take_digits();
  if (whole == 0) return {};
  if (begins_with_zero && whole > 1) return {};
  if (std::size_t before = end; at(".")) {
    ++end;
    if (take_digits() == 0) end = before;
  }
  if (std::size_t before = end; at("eE")) {
    ++end;
    if (at("+-")) ++end;
    if (take_digits() == 0) end = before;
  }
  return text.substr(0, end);
}

void append_utf8(std::string& text, std::uint32_t code) {
  const auto byte = [&](std::uint32_t bits) { text += static_cast<char>(bits); };
  const auto rest = [&](int shift) { byte(0x80 | ((code >> shift) & 0x3f)); };
  if (code < 0x80) {
    byte(code);
  } else if (code < 0x800) {
    byte(0xc0 | (code >> 6)), rest(0);
  } else if (code < 0x10000) {
    byte(0xe0 | (code >> 12)), rest(6), rest(0);
  } else {
    byte(0xf0 | (code >> 18)), rest(12), rest(6), rest(0);
  }
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(whitespace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(whitespace) + 1 - begin);
}

/// As a message shows it.
std::string shown(std::string_view text) {
  constexpr std::size_t length_max = 40;
  std::string out(text.substr(0, length_max));
  return printable(text.size() > length_max ? out + "..." : out);
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text), lines_(text) {}

  Json::Value parse() {
    if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
    skip_space();
    const bool braced = peek() == '{' || peek() == '[';
    Json::Value root = braced ? value() : members(/*braced=*/false);
    skip_space();
    if (at_ < text_.size()) fail("wanted the end of the text, got " + shown(text_.substr(at_)));
    return root;
  }

 private:
  [[noreturn]] void fail(std::string text) const { fail_at(at_, std::move(text)); }
  [[noreturn]] void fail_at(std::size_t at, std::string text) const {
    throw SyntaxError{at, std::move(text), path_};
  }

  [[nodiscard]] char peek(std::size_t ahead = 0) const {
    return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0';
  }
  [[nodiscard]] bool is_end() const { return at_ >= text_.size(); }
  [[nodiscard]] bool at(std::string_view what) const { return text_.substr(at_).starts_with(what); }
  /// The place of the first of `any` from here on, or the text's end.
  [[nodiscard]] std::size_t find(std::string_view any) const {
    return std::min(text_.find_first_of(any, at_), text_.size());
  }

  /// Whitespace and comments.
  void skip_space() {
    while (true) {
      at_ = std::min(text_.find_first_not_of(whitespace, at_), text_.size());
      if (at("#") || at("//")) {
        at_ = find("\r\n");
      } else if (at("/*")) {
        const std::size_t end = text_.find("*/", at_ + 2);
        if (end == text_.npos) fail("a comment has no end");
        at_ = end + 2;
      } else {
        return;
      }
    }
  }

  Json::Value value() {
    const std::size_t begin = at_;
    Json::Value json;
    if (at("'''"))
      json = multiline_string();
    else if (peek() == '"' || peek() == '\'')
      json = quoted_string();
    else if (peek() == '{')
      ++at_, json = members(/*braced=*/true);
    else if (peek() == '[')
      ++at_, json = elements();
    else
      json = bare_value();
    json.setOffsetStart(static_cast<std::ptrdiff_t>(begin));
    json.setOffsetLimit(static_cast<std::ptrdiff_t>(at_));
    return json;
  }

  void enter() {
    if (++depth_ > depth_max) fail("nested too deeply");
  }

  /// The members of an object, up to and with its closing brace, or up to the text's end.
  Json::Value members(bool braced) {
    enter();
    Json::Value object(Json::objectValue);
    std::map<std::string, std::size_t> seen;
    const std::string outside = path_;
    for (skip_space();; skip_space()) {
      if (braced ? peek() == '}' : is_end()) break;
      if (is_end()) fail("wanted a key or }, got the end of the text");
      const std::size_t begin = at_;
      const std::string key = name();
      path_ = outside.empty() ? key : outside + "." + key;
      if (const auto [first, is_new] = seen.emplace(key, begin); !is_new) {
        fail_at(begin, "the key is given twice, first on line " + std::to_string(line_of(first->second)));
      }
      skip_space();
      if (peek() != ':') fail("wanted a colon after the key, got " + next_shown());
      ++at_;
      skip_space();
      object[key] = value();
      skip_space();
      if (peek() == ',') ++at_;
      path_ = outside;
    }
    if (braced) ++at_;
    --depth_;
    return object;
  }

  Json::Value elements() {
    enter();
    Json::Value list(Json::arrayValue);
    for (skip_space(); peek() != ']'; skip_space()) {
      if (is_end()) fail("wanted a value or ], got the end of the text");
      list.append(value());
      skip_space();
      if (peek() == ',') ++at_;
    }
    ++at_;
    --depth_;
    return list;
  }

  std::string name() {
    if (peek() == '"' || peek() == '\'') return quoted_string();
    const std::size_t end = find(":,{}[] \t\r\n");
    if (end == at_) fail("wanted a key, got " + next_shown());
    const std::string key(text_.substr(at_, end - at_));
    at_ = end;
    return key;
  }

  std::string quoted_string() {
    const std::size_t begin = at_;
    const char quote = text_[at_++];
    std::string out;
    while (true) {
      if (is_end() || peek() == '\n' || peek() == '\r') {
        fail_at(begin,
                "a string has no end on its line: " + shown(trimmed(text_.substr(begin, at_ - begin))));
      }
      const char c = text_[at_++];
      if (c == quote) return out;
      if (static_cast<unsigned char>(c) < 0x20)
        fail_at(at_ - 1, "a string contains a control character; write \\t or \\u00xx");
      if (c == '\\')
        escape(out);
      else
        out += c;
    }
  }

  void escape(std::string& out) {
    static constexpr std::string_view letters = "\"'\\/bfnrt", meanings = "\"'\\/\b\f\n\r\t";
    const char c = peek();
    if (const std::size_t known = letters.find(c); c != '\0' && known != letters.npos) {
      ++at_;
      out += meanings[known];
      return;
    }
    if (c != 'u')
      fail(std::string("a string contains \\") + printable(std::string(1, c)) + ", which means nothing");
    std::uint32_t code = code_unit();
    const bool is_high = (code & 0xfc00) == 0xd800;
    if (is_high && peek() == '\\' && peek(1) == 'u') {
      ++at_;
      const std::uint32_t low = code_unit();
      if ((low & 0xfc00) == 0xdc00) code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    if (code >= 0xd800 && code < 0xe000) fail("a string contains half of a surrogate pair");
    append_utf8(out, code);
  }

  /// `uXXXX`.
  std::uint32_t code_unit() {
    const std::string_view four = text_.substr(std::min(at_ + 1, text_.size()), 4);
    std::uint32_t code = 0;
    const auto end = std::from_chars(four.data(), four.data() + four.size(), code, 16);
    if (four.size() != 4 || end.ptr != four.data() + 4) fail("wanted four hexadecimal digits after \\u");
    at_ += 5;
    return code;
  }

  /// Lines between `'''`, without the indentation of the first quotes, the line end after them and the one before the
  /// last ones.
  std::string multiline_string() {
    const std::size_t begin = at_, end = text_.find("'''", begin + 3);
    if (end == text_.npos) fail("a string of several lines has no end: wanted '''");
    at_ = end + 3;
    std::string_view rest = text_.substr(begin + 3, end - begin - 3);
    const std::size_t indentation = rest.find('\n') == rest.npos ? 0 : begin - line_begin(begin);
    const std::size_t blank = std::min(rest.find_first_not_of(" \t\r"), rest.size());
    rest.remove_prefix(blank);
    std::string out;
    if (rest.starts_with('\n')) {
      rest.remove_prefix(1);
      rest.remove_prefix(indentation_of(rest, indentation));
    }
    while (!rest.empty()) {
      const char c = rest.front();
      rest.remove_prefix(1);
      if (c != '\r') out += c;
      if (c == '\n') rest.remove_prefix(indentation_of(rest, indentation));
    }
    if (out.ends_with('\n')) out.pop_back();
    return out;
  }

  [[nodiscard]] std::size_t line_begin(std::size_t at) const {
    const std::size_t end_before = at == 0 ? text_.npos : text_.rfind('\n', at - 1);
    return end_before == text_.npos ? 0 : end_before + 1;
  }

  static std::size_t indentation_of(std::string_view line, std::size_t most) {
    return std::min(std::min(line.find_first_not_of(" \t\r"), line.size()), most);
  }

  /// true, false, null, a number, or a string up to the line's end.
  Json::Value bare_value() {
    const std::size_t begin = at_;
    if (is_end() || std::string_view("}],:").find(peek()) != std::string_view::npos)
      fail("wanted a value, got " + next_shown());
    const std::string_view word = trimmed(text_.substr(begin, word_end() - begin));
    std::optional<Json::Value> known;
    if (word == "null") known.emplace();
    if (word == "true" || word == "false") known = word == "true";
    if (!known && !word.empty() && number_prefix(word) == word) known = number(word);
    if (known) {
      at_ = begin + word.size();
      return *std::move(known);
    }
    const std::size_t line_end = find("\r\n");
    const std::string_view rest = trimmed(text_.substr(begin, line_end - begin));
    if (rest.ends_with(',') || rest.find_first_of("}]") != rest.npos) fail(no_value(word));
    at_ = line_end;
    return std::string(rest);
  }

  static std::string no_value(std::string_view word) {
    if (word.find_first_of("+-.0123456789") != 0)
      return "wanted true, false, null, a number, or a string in quotes, got " + shown(word);
    return "wanted a number as JSON writes it, got " + shown(word) +
           "; omit a plus sign and leading zeros, write digits before and after a point";
  }

  /// The place of what may follow a word or a number on its line. It looks no further: a text may have one line.
  [[nodiscard]] std::size_t word_end() const {
    for (std::size_t end = at_;; ++end) {
      end = std::min(text_.find_first_of(",}]#/\r\n", end), text_.size());
      const std::string_view rest = text_.substr(end);
      if (!rest.starts_with('/') || rest.starts_with("//") || rest.starts_with("/*")) return end;
    }
  }

  Json::Value number(std::string_view word) const {
    const bool is_integer = word.find_first_of(".eE") == word.npos;
    const char* const end = word.data() + word.size();
    if (std::int64_t value = 0; is_integer && std::from_chars(word.data(), end, value).ec == std::errc())
      return Json::Int64(value);
    if (std::uint64_t value = 0; is_integer && std::from_chars(word.data(), end, value).ec == std::errc())
      return Json::UInt64(value);
    double value = 0;
    if (std::from_chars(word.data(), end, value).ec != std::errc())
      fail("the number " + shown(word) + " is beyond double precision");
    return value;
  }

  [[nodiscard]] std::string next_shown() const {
    return is_end() ? "the end of the text" : shown(text_.substr(at_, find("\r\n") - at_));
  }
  [[nodiscard]] std::uint32_t line_of(std::size_t at) const {
    return lines_.line_of(static_cast<std::ptrdiff_t>(at));
  }

  const std::string_view text_;
  const LineIndex lines_;
  std::size_t at_ = 0, depth_ = 0;
  std::string path_;  // of the key whose value is read
};

}  // namespace

Json::Value parse_hjson(std::string_view text, std::vector<Problem>& problems) {
  try {
    return Parser(text).parse();
  } catch (const SyntaxError& error) {
    const LineIndex lines(text);
    problems.push_back(
        {printable(error.path), lines.line_of(static_cast<std::ptrdiff_t>(error.at)), error.text});
    return {};
  }
}

}  // namespace penstock::zero::config
