#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace penstock::test::ptx {

/// The global memory of a kernel.
class Memory {
 public:
  Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  virtual ~Memory() = default;

  /// Where the `size` bytes of an address are. Throws IllegalAccess if they are not memory of the kernel.
  [[nodiscard]] virtual std::byte* at(std::uint64_t address, std::size_t size) const = 0;
};

struct IllegalAccess : std::runtime_error {
  IllegalAccess() : std::runtime_error("PTX: an access outside of the kernel's memory") {}
};

/// A register; in brackets, the address in the register plus an offset in bytes.
struct Operand {
  std::size_t number = 0;
  std::uint64_t offset = 0;
};

/// The registers of one thread hold bits; each instruction interprets them by its type. A constant is a register that
/// is never written.
struct Thread {
  std::vector<std::uint64_t> registers;
  std::size_t next = 0;  // instruction
  const Memory* memory = nullptr;

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
  [[nodiscard]] std::byte* global(const Operand& operand, std::size_t size) const {
    return memory->at(registers[operand.number] + operand.offset, size);
  }
  /// Parameters are host memory.
  [[nodiscard]] const std::byte* parameter(const Operand& operand) const {
    return reinterpret_cast<const std::byte*>(registers[operand.number] + operand.offset);
  }
};

using Operands = std::vector<Operand>;
using Action = void (*)(Thread&, const Operands&);

struct Operation {
  Action act;  ///< null for a shuffle, which all threads of a warp execute together
  std::size_t operands;
};

/// The operation of an instruction by its name, followed by " {}" if the first operand is a vector and by " ,{}" if the
/// last one is.
///
/// Throws std::runtime_error for a name that is not known here.
[[nodiscard]] const Operation& operation(const std::string& name);

}  // namespace penstock::test::ptx
