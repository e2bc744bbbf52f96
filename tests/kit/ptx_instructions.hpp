#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace penstock::test::ptx {

/// A register; in brackets, the address that it holds and so many bytes more.
struct Operand {
  std::size_t number = 0;
  std::uint64_t offset = 0;
};

/// The registers of one thread hold bits; what they are is the instruction's to say. A constant is a register
/// that nobody writes.
struct Thread {
  std::vector<std::uint64_t> registers;
  std::size_t next = 0;  // instruction

  template <class T>
  [[nodiscard]] T get(const Operand& operand) const {
    T value;
    std::memcpy(&value, &registers[operand.number], sizeof value);
    return value;
  }
  template <class T>
  void set(const Operand& operand, T value) {
    registers[operand.number] = 0;
    std::memcpy(&registers[operand.number], &value, sizeof value);
  }
  [[nodiscard]] std::byte* address(const Operand& operand) const {
    return reinterpret_cast<std::byte*>(registers[operand.number] + operand.offset);
  }
};

using Operands = std::vector<Operand>;
using Action = void (*)(Thread&, const Operands&);

struct Operation {
  Action act;  ///< null for a shuffle, which no thread does alone
  std::size_t operands;
};

/// What an instruction does, by its name, with " {}" behind it where the first operand is a vector and " ,{}"
/// where the last one is.
///
/// Throws std::runtime_error for a name that is not known here.
[[nodiscard]] const Operation& operation(const std::string& name);

}  // namespace penstock::test::ptx
