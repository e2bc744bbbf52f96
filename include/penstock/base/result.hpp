#pragma once

#include <penstock/base/units.hpp>

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <utility>
#include <vector>

namespace penstock {

/// The kinds of errors, a closed set that callers may switch on.
enum class ErrorCode : std::uint8_t {
  invalid_argument,   ///< misuse by the caller: the call changed nothing
  invalid_config,     ///< the configuration cannot be used as written
  unsupported,        ///< understood, but not available on this machine or not implemented
  would_block,        ///< no free slot now: poll, then repeat the call
  budget_too_small,   ///< nothing in flight can ever free the requested bytes
  no_space,           ///< the file system is full or too small
  permission,         ///< the operating system refused access
  not_found,          ///< the named object does not exist
  already_exists,     ///< the named object exists and must not
  in_use,             ///< another process, or another owner in this process, uses the named object
  io,                 ///< the device or the kernel reported a failure
  truncated,          ///< the file is shorter than the bytes that it must contain
  corrupted,          ///< bytes read back differ from the bytes written
  non_finite,         ///< a value that must be finite is not
  deadline_exceeded,  ///< an operation did not complete in the time allowed
  peer_failed,        ///< another rank failed or left
  interrupted,        ///< a rank abandoned the training step: abandon it too, see Engine::abandon_step()
  failed_state,       ///< an earlier error made this object unusable; the message names that error
};

/// A few words for messages: "input/output error" for io, "no space" for no_space.
[[nodiscard]] std::string_view to_string(ErrorCode code);

/// An error: the operation that failed, its object and offset, the wanted and actual values, and advice.
///
/// Numbers are stored as numbers and message() formats them, so that an error on a hot path allocates nothing. Texts
/// (object, advice, notes) are added with the chained members below, by the code that knows them. A value type, safe
/// to copy and to move between threads.
class Error {
 public:
  /// `operation` is a string literal, usually "Class::function"; it is kept by reference. Null counts as "".
  Error(ErrorCode code, const char* operation)
      : operation_(operation == nullptr ? "" : operation), code_(code) {}

  // Constructors of the most frequent codes.
  static Error invalid_argument(const char* operation) { return {ErrorCode::invalid_argument, operation}; }
  static Error invalid_config(const char* operation) { return {ErrorCode::invalid_config, operation}; }
  static Error unsupported(const char* operation) { return {ErrorCode::unsupported, operation}; }
  static Error would_block(const char* operation) { return {ErrorCode::would_block, operation}; }
  /// The error for `errno_value`: ENOSPC becomes no_space, EACCES permission, and so on.
  static Error from_errno(const char* operation, int errno_value);

  // The wanted and the actual value. Each overload prints in its own unit.
  Error&& wanted(ByteCount n) && { return wanted_ = {Unit::bytes, n.value()}, std::move(*this); }
  Error&& wanted(ElementCount n) && { return wanted_ = {Unit::elements, n.value()}, std::move(*this); }
  Error&& wanted(std::unsigned_integral auto n) && { return wanted_ = {Unit::none, n}, std::move(*this); }
  Error&& wanted(std::string text) && { return text_().wanted = std::move(text), std::move(*this); }
  Error&& got(ByteCount n) && { return got_ = {Unit::bytes, n.value()}, std::move(*this); }
  Error&& got(ElementCount n) && { return got_ = {Unit::elements, n.value()}, std::move(*this); }
  Error&& got(std::unsigned_integral auto n) && { return got_ = {Unit::none, n}, std::move(*this); }
  Error&& got(std::string text) && { return text_().got = std::move(text), std::move(*this); }

  Error&& at(FileOffset offset) && { return offset_ = {Unit::bytes, offset.value()}, std::move(*this); }
  /// The object of the operation: a file, a tensor, a configuration key.
  Error&& object(std::string name) && { return text_().object = std::move(name), std::move(*this); }
  /// The cause in one sentence, printed instead of the code's name.
  Error&& reason(std::string text) && { return text_().reason = std::move(text), std::move(*this); }
  /// The place where the user can change the setting: "offload_optimizer.nvme_path, ds_config.json line 14".
  Error&& where(std::string place) && { return text_().where = std::move(place), std::move(*this); }
  /// What the user can do about it.
  Error&& advice(std::string text) && { return text_().advice = std::move(text), std::move(*this); }
  /// An additional line, such as one holder of a budget. Call once per line.
  Error&& note(std::string line) && { return text_().notes.push_back(std::move(line)), std::move(*this); }

  [[nodiscard]] ErrorCode code() const { return code_; }
  [[nodiscard]] const char* operation() const { return operation_; }
  /// The errno that caused it, 0 if none.
  [[nodiscard]] int os_error() const { return os_error_; }

  /// What the members above have set, as texts; empty or none, where they have not.
  struct Fields {
    std::string object, reason, wanted, got, where, advice;
    std::vector<std::string> notes;
    std::optional<FileOffset> offset;
  };
  [[nodiscard]] Fields fields() const;
  /// One or more lines without a trailing newline: the cause, then indented `where`, notes and `try` (the advice).
  [[nodiscard]] std::string message() const;

 private:
  enum class Unit : std::uint8_t { absent, none, bytes, elements };
  struct Quantity {
    Unit unit = Unit::absent;
    std::uint64_t value = 0;
  };
  struct Text {
    std::string object, reason, wanted, got, where, advice;
    std::vector<std::string> notes;
  };
  Text& text_();
  static std::string format(const Quantity& quantity);

  const char* operation_;
  Quantity wanted_, got_, offset_;
  std::shared_ptr<Text> text_body_;
  int os_error_ = 0;
  ErrorCode code_;
};

/// The exception of Result::value(). what() is the error's message.
class BadResult final : public tl::bad_expected_access<Error> {
 public:
  explicit BadResult(Error error);
  [[nodiscard]] const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

/// A value or the Error that explains its absence, with std::expected's member names.
///
/// `value()` throws BadResult, for callers who prefer exceptions.
template <class T>
class [[nodiscard]] Result : public tl::expected<T, Error> {
 public:
  using tl::expected<T, Error>::expected;
  Result(Error error) : tl::expected<T, Error>(tl::unexpect, std::move(error)) {}

  T& value() & { return check_value(), **this; }
  const T& value() const& { return check_value(), **this; }
  T&& value() && { return check_value(), *std::move(*this); }

 private:
  void check_value() const {
    if (!this->has_value()) throw BadResult(this->error());
  }
};

template <>
class [[nodiscard]] Result<void> : public tl::expected<void, Error> {
 public:
  using tl::expected<void, Error>::expected;
  Result() = default;
  Result(Error error) : tl::expected<void, Error>(tl::unexpect, std::move(error)) {}

  /// tl::expected 1.0 has a void value() that does not compile.
  void value() const {
    if (!has_value()) throw BadResult(error());
  }
};

/// Success of an operation that has nothing to return.
inline Result<void> ok() {
  return {};
}

}  // namespace penstock

/// Returns from the enclosing function with the error of `expression`, if it failed.
#define PENSTOCK_TRY(expression)                                            \
  do {                                                                      \
    if (auto penstock_result = (expression); !penstock_result) [[unlikely]] \
      return std::move(penstock_result).error();                            \
  } while (false)

/// Declares a variable, or assigns to one, with the value of the Result `...`, which is moved out of it. Returns from
/// the enclosing function with the error, if it failed. At most one use per source line. It is more than one statement:
/// under an `if` or a loop it needs braces.
///
///     PENSTOCK_TRY_ASSIGN(auto file, file_system.open(path));
#define PENSTOCK_TRY_ASSIGN(declaration, ...) \
  PENSTOCK_TRY_ASSIGN_NAMED(PENSTOCK_CONCATENATE(penstock_result_, __LINE__), declaration, __VA_ARGS__)

#define PENSTOCK_CONCATENATE(a, b) PENSTOCK_CONCATENATE_EXPANDED(a, b)
#define PENSTOCK_CONCATENATE_EXPANDED(a, b) a##b
#define PENSTOCK_TRY_ASSIGN_NAMED(result, declaration, ...) \
  auto result = (__VA_ARGS__);                              \
  if (!result) [[unlikely]]                                 \
    return std::move(result).error();                       \
  declaration = *std::move(result)
