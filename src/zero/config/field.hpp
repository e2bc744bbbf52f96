#pragma once

#include <penstock/zero/config/config.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace penstock::zero::config {

/// A value of the correct kind and range.
struct Value {
  bool flag = false;
  std::uint64_t count = 0;  ///< of `count` and `bytes`
  double real = 0;
  std::string text;                ///< the choice as the schema spells it
  std::vector<std::string> texts;  ///< of `paths`
  std::vector<double> numbers;
};

/// The names that the file uses for an enumeration are those of its to_string().
template <class E>
inline constexpr std::array<E, 0> enumerators{};
template <>
inline constexpr std::array enumerators<OffloadDevice>{OffloadDevice::none, OffloadDevice::cpu,
                                                       OffloadDevice::nvme};
template <>
inline constexpr std::array enumerators<AllreduceOp>{AllreduceOp::mean, AllreduceOp::sum};
template <>
inline constexpr std::array enumerators<Integrity>{Integrity::off, Integrity::checksum};
template <>
inline constexpr std::array enumerators<UpdateSplit>{UpdateSplit::ratio, UpdateSplit::automatic};
template <>
inline constexpr std::array enumerators<Release>{Release::planned, Release::reuse_distance};
template <>
inline constexpr std::array enumerators<NonFiniteGradients>{NonFiniteGradients::skip,
                                                            NonFiniteGradients::as_deepspeed};
template <>
inline constexpr std::array enumerators<Reduction>{Reduction::exact, Reduction::native};
template <>
inline constexpr std::array enumerators<DType>{DType::fp32, DType::fp16, DType::bf16};
template <>
inline constexpr std::array enumerators<swap::Eviction>{swap::Eviction::lru, swap::Eviction::planned,
                                                        swap::Eviction::reuse_distance};
template <>
inline constexpr std::array enumerators<tiers::EngineChoice>{
    tiers::EngineChoice::automatic, tiers::EngineChoice::io_uring, tiers::EngineChoice::libaio,
    tiers::EngineChoice::threads};
template <>
inline constexpr std::array enumerators<cpu_adam::StateFormat>{
    cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split, cpu_adam::StateFormat::split_bf16,
    cpu_adam::StateFormat::split_q8};

/// The shortest decimal number that is read back as `value`, as a double: 0.9 for 0.9f, not 0.899999976.
[[nodiscard]] inline double shortest_decimal(float value) {
  std::array<char, 32> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  double shortest = 0;
  std::from_chars(digits.data(), end.ptr, shortest);
  return shortest;
}

// Conversions between a member and a Value. load() returns nothing for an empty member, which is null in the file.

inline void store(bool& member, const Value& value) {
  member = value.flag;
}
inline std::optional<Value> load(bool member) {
  return Value{.flag = member};
}

template <std::unsigned_integral T>
requires(!std::same_as<T, bool>) void store(T& member, const Value& value) {
  member = static_cast<T>(value.count);
}
template <std::unsigned_integral T>
requires(!std::same_as<T, bool>) std::optional<Value> load(T member) {
  return Value{.count = member};
}

template <class T>
concept Quantity = std::same_as<T, ByteCount> || std::same_as<T, ElementCount>;
void store(Quantity auto& member, const Value& value) {
  member = std::decay_t<decltype(member)>(value.count);
}
std::optional<Value> load(const Quantity auto& member) {
  return Value{.count = member.value()};
}

inline void store(float& member, const Value& value) {
  member = static_cast<float>(value.real);
}
inline std::optional<Value> load(float member) {
  return Value{.real = shortest_decimal(member)};
}

inline void store(double& member, const Value& value) {
  member = value.real;
}
inline std::optional<Value> load(double member) {
  return Value{.real = member};
}

inline void store(std::string& member, const Value& value) {
  member = value.text;
}
inline std::optional<Value> load(const std::string& member) {
  return Value{.text = member};
}

template <class E>
requires std::is_enum_v<E>
void store(E& member, const Value& value) {
  static_assert(!enumerators<E>.empty(), "list the enumerators");
  for (const E one : enumerators<E>) {
    if (value.text == to_string(one)) member = one;
  }
}
template <class E>
requires std::is_enum_v<E> std::optional<Value> load(E member) {
  return Value{.text = std::string(to_string(member))};
}

template <class T>
requires std::is_arithmetic_v<T>
void store(std::vector<T>& member, const Value& value) {
  member.assign(value.numbers.begin(), value.numbers.end());
}
template <class T>
requires std::is_arithmetic_v<T> std::optional<Value> load(const std::vector<T>& member) {
  if (member.empty()) return std::nullopt;
  return Value{.numbers = {member.begin(), member.end()}};
}

template <std::size_t n>
void store(std::array<double, n>& member, const Value& value) {
  std::copy_n(value.numbers.begin(), n, member.begin());
}
template <std::size_t n>
std::optional<Value> load(const std::array<double, n>& member) {
  return Value{.numbers = {member.begin(), member.end()}};
}

inline void store(std::vector<ByteCount>& member, const Value& value) {
  member.clear();
  for (const double number : value.numbers) member.emplace_back(static_cast<std::uint64_t>(number));
}
inline std::optional<Value> load(const std::vector<ByteCount>& member) {
  if (member.empty()) return std::nullopt;
  Value value;
  for (const ByteCount bytes : member) value.numbers.push_back(static_cast<double>(bytes.value()));
  return value;
}

/// Nothing is the empty name.
inline void store(std::filesystem::path& member, const Value& value) {
  member = value.text;
}
inline std::optional<Value> load(const std::filesystem::path& member) {
  if (member.empty()) return std::nullopt;
  return Value{.text = member.string()};
}

inline void store(std::vector<std::filesystem::path>& member, const Value& value) {
  member.assign(value.texts.begin(), value.texts.end());
}
inline std::optional<Value> load(const std::vector<std::filesystem::path>& member) {
  if (member.empty()) return std::nullopt;
  Value value;
  for (const auto& path : member) value.texts.push_back(path.string());
  return value;
}

template <class T>
void store(std::optional<T>& member, const Value& value) {
  store(member.emplace(), value);
}
template <class T>
std::optional<Value> load(const std::optional<T>& member) {
  return member ? load(*member) : std::nullopt;
}

struct Draft;

/// Accessors of the member that keeps a key's value.
struct Field {
  void (*set)(Draft&, const Value&) = nullptr;
  std::optional<Value> (*get)(const Draft&) = nullptr;

  [[nodiscard]] explicit operator bool() const { return set != nullptr; }
};

/// The member at the end of a path of member pointers: field<&Draft::config, &Config::stage>.
template <auto... path>
inline constexpr Field field{[](Draft& draft, const Value& value) { store((draft.*....*path), value); },
                             [](const Draft& draft) { return load((draft.*....*path)); }};

}  // namespace penstock::zero::config
