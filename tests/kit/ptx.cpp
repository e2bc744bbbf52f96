#include "kit/ptx.hpp"

#include "kit/ptx_instructions.hpp"

#include <cxxabi.h>
#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <regex>
#include <span>
#include <stdexcept>
#include <string_view>

namespace penstock::test {

namespace {

using ptx::Operand;
using ptx::Operands;
using ptx::Thread;
using u32 = std::uint32_t;
using u64 = std::uint64_t;

struct Instruction {
  ptx::Action act;
  ptx::WarpAction act_together;
  ptx::Group group;
  Operands operands;
  std::size_t guard;  // a predicate; without one it is true
  bool negated;
};

constexpr std::array<std::string_view, 4> built_in = {"%ctaid.x", "%nctaid.x", "%tid.x", "%ntid.x"};

std::runtime_error unknown(const std::string& what) {
  return std::runtime_error("PTX: unknown here: " + what);
}

/// Decodes a kernel: names of registers, labels and parameters become numbers.
class Decoder {
 public:
  Decoder(const std::map<std::string, std::size_t>& labels, ptx::Arithmetic arithmetic)
      : labels_(labels), arithmetic_(arithmetic) {
    for (const std::string_view name : built_in) (void)number_of(std::string(name));
  }

  /// A name that stands for an address in shared memory.
  void add_variable(const std::string& name, u64 address) { registers_[number_of(name)] = address; }
  /// The register of a parameter, whose name stands for its address.
  [[nodiscard]] std::size_t add_parameter(const std::string& name) { return number_of(name); }
  [[nodiscard]] Instruction decode(const std::string& line) {
    static const std::regex form(R"((?:@(!?)(%\w+)\s+)?([\w.]+)\s*(.*))");
    static const std::regex operand(R"([^\s,|{}\[\]]+)");
    std::smatch match;
    if (!std::regex_match(line, match, form)) throw unknown(line);
    const std::string operands = match.str(4);
    const char *const first = operands.starts_with('{') ? " {}" : "", *const last = operands.ends_with('}')
                                                                                        ? " ,{}"
                                                                                        : "";
    const ptx::Operation& operation = ptx::operation(match.str(3) + first + last, arithmetic_);
    if (operation.group != ptx::Group::thread && match[2].matched) throw unknown(line);
    Instruction instruction{.act = operation.act,
                            .act_together = operation.act_together,
                            .group = operation.group,
                            .operands = {},
                            .guard = match[2].matched ? number_of(match.str(2)) : constant(1),
                            .negated = match.length(1) > 0};
    for (std::sregex_iterator i(operands.begin(), operands.end(), operand), end; i != end; ++i) {
      instruction.operands.push_back(decode_operand(i->str()));
    }
    if (instruction.operands.size() != operation.operands) throw unknown(line);
    return instruction;
  }
  /// The initial registers of a thread; the built-in ones come first.
  [[nodiscard]] const std::vector<u64>& registers() const { return registers_; }

 private:
  Operand decode_operand(const std::string& text) {
    static const std::regex bits(R"(0[fd]([0-9A-F]+))"), integer(R"(-?\d+)"),
        address(R"(([%\w$.]+)(?:\+(-?\d+))?)"), register_name(R"(%(p|rs|r|rd|f|fd)\d+)");
    if (const auto label = labels_.find(text); label != labels_.end()) return {label->second, 0};
    std::smatch match;
    if (std::regex_match(text, match, bits)) return {constant(std::stoull(match.str(1), nullptr, 16)), 0};
    if (std::regex_match(text, integer)) return {constant(static_cast<u64>(std::stoll(text))), 0};
    if (!std::regex_match(text, match, address)) throw unknown(text);
    const std::string name = match.str(1);
    if (!numbers_.contains(name) && !std::regex_match(name, register_name)) throw unknown(text);
    return {number_of(name), match[2].matched ? static_cast<u64>(std::stoll(match.str(2))) : 0};
  }
  std::size_t number_of(const std::string& name) {
    const auto [at, added] = numbers_.try_emplace(name, registers_.size());
    if (added) registers_.push_back(0);
    return at->second;
  }
  std::size_t constant(u64 value) {
    const auto [at, added] = constants_.try_emplace(value, registers_.size());
    if (added) registers_.push_back(value);
    return at->second;
  }

  const std::map<std::string, std::size_t>& labels_;
  const ptx::Arithmetic arithmetic_;
  std::map<std::string, std::size_t> numbers_;
  std::map<u64, std::size_t> constants_;
  std::vector<u64> registers_;
};

/// The instruction that all `threads` have reached.
std::size_t common_instruction(std::span<const Thread> threads) {
  const std::size_t here = threads.front().next;
  if (!std::ranges::all_of(threads, [&](const Thread& thread) { return thread.next == here; })) {
    throw std::runtime_error("PTX: not all threads take part in an instruction of a warp or a barrier");
  }
  return here;
}

/// Runs one thread after the other, to its end or to the next barrier.
void run_warp(std::span<Thread> warp, const std::vector<Instruction>& program) {
  while (true) {
    for (Thread& thread : warp) {
      while (thread.next < program.size() && program[thread.next].group == ptx::Group::thread) {
        const Instruction& instruction = program[thread.next++];
        if ((thread.registers[instruction.guard] != 0) == instruction.negated) continue;
        instruction.act(thread, instruction.operands);
      }
    }
    const std::size_t here = common_instruction(warp);
    if (here >= program.size() || program[here].group == ptx::Group::block) return;
    program[here].act_together(warp, program[here].operands);
    for (Thread& thread : warp) ++thread.next;
  }
}

/// Runs one warp after the other, from barrier to barrier.
void run_block(std::span<Thread> block, const std::vector<Instruction>& program, ptx::SharedMemory& shared) {
  constexpr std::size_t warp_size = 32;
  while (true) {
    for (std::size_t first = 0; first < block.size(); first += warp_size) {
      run_warp(block.subspan(first, std::min(warp_size, block.size() - first)), program);
    }
    if (common_instruction(block) >= program.size()) return;
    shared.pass_barrier();
    for (Thread& thread : block) ++thread.next;
  }
}

/// The instruction in a line of a kernel, without its semicolon; in braces if it is inline assembly. Empty if there is
/// none. Not a regular expression: most lines of large files are instructions.
std::string_view instruction_of(std::string_view line) {
  const std::size_t begin = line.find_first_not_of("\t {"), end = line.find(';');
  if (begin == 0 || end == line.npos || end < begin) return {};
  if (line[begin] != '@' && std::islower(static_cast<unsigned char>(line[begin])) == 0) return {};
  const std::string_view rest = line.substr(end + 1);
  return rest.empty() || rest == "}" || rest == "\t" ? line.substr(begin, end - begin) : std::string_view();
}

}  // namespace

/// A kernel that is decoded.
struct PtxModule::Program {
  std::vector<Instruction> instructions;
  std::vector<u64> registers;           ///< the initial ones of a thread
  std::vector<std::size_t> parameters;  ///< the register of each
  std::size_t shared_size = 0;          ///< of the variables in shared memory that it uses
};

PtxModule::PtxModule(const std::filesystem::path& path, ptx::Arithmetic arithmetic)
    : arithmetic_(arithmetic) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("PTX: cannot read " + path.string());
  const std::regex entry(R"(.*\.entry\s+([\w$]+)\()"),
      parameter(R"(\s*\.param\s(?:.*\s)?\.[bfu](\d+)\s+([\w$]+)(?:\[(\d+)\])?,?)"), label(R"(([\w$]+):)"),
      shared(R"(\s*\.shared\s+\.align\s+\d+\s+\.[bfu](\d+)\s+([\w$]+)(?:\[(\d+)\])?;)"),
      ignored(R"(\s*([(){}]|\.(reg|pragma|maxntid|minnctapersm)\s.*|//.*)?)");
  Kernel* kernel = nullptr;
  std::smatch match;
  const auto size = [&match] {  // of a parameter or variable: bits, name, elements of an array
    return std::stoull(match.str(1)) / 8 * (match[3].matched ? std::stoull(match.str(3)) : 1);
  };
  for (std::string line; std::getline(file, line);) {
    if (const std::string_view instruction = instruction_of(line);
        kernel != nullptr && !instruction.empty()) {
      kernel->lines.emplace_back(instruction);
    } else if (std::regex_match(line, match, shared)) {
      shared_[match.str(2)] = size();
    } else if (std::regex_match(line, match, entry)) {
      kernel = &kernels_[name_in_cpp(match.str(1))];
    } else if (kernel == nullptr) {
      continue;
    } else if (std::regex_match(line, match, parameter)) {
      kernel->parameters.push_back({match.str(2), size()});
    } else if (std::regex_match(line, match, label)) {
      kernel->labels[match.str(1)] = kernel->lines.size();
    } else if (!std::regex_match(line, ignored)) {
      throw unknown(line);
    } else if (line == "}") {
      kernel = nullptr;
    }
  }
}

/// "adam_kernel<float,penstock::kernels::SplitTile>" of a mangled name: demanglers differ in spaces.
std::string PtxModule::name_in_cpp(const std::string& mangled) {
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> text(
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status), &std::free);
  const std::string name = status == 0 ? text.get() : mangled;
  std::smatch match;
  if (!std::regex_search(name, match, std::regex(R"((\w+_kernel(<.*>)?)\()"))) return name;
  return std::regex_replace(match.str(1), std::regex(" "), "");
}

const PtxModule::Kernel& PtxModule::find(const std::string& name) const {
  const auto found = kernels_.find(name);
  if (found == kernels_.end()) throw unknown("kernel " + name);
  return found->second;
}

PtxModule::Launch PtxModule::bind(const std::string& name, Grid grid, const void* const* arguments) const {
  const Kernel& kernel = find(name);
  std::vector<Bytes> values;
  for (const auto& [parameter, size] : kernel.parameters) {
    const auto* const bytes = static_cast<const std::byte*>(*arguments++);
    values.emplace_back(bytes, bytes + size);
  }
  return [this, &kernel, grid, copied = std::move(values)](const ptx::Memory& memory) {
    run(kernel, grid, copied, memory);
  };
}

void PtxModule::run_on_host(const std::string& name, Grid grid, const std::vector<Bytes>& arguments) const {
  struct HostMemory final : ptx::Memory {
    std::byte* at(std::uint64_t address, std::size_t) const override {
      return reinterpret_cast<std::byte*>(address);
    }
  };
  const Kernel& kernel = find(name);
  if (arguments.size() != kernel.parameters.size()) throw std::runtime_error("PTX: arguments of " + name);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto& [parameter, size] = kernel.parameters[i];
    if (arguments[i].size() != size) throw std::runtime_error("PTX: the size of " + parameter);
  }
  run(kernel, grid, arguments, HostMemory());
}

void PtxModule::run(const Kernel& kernel, Grid grid, const std::vector<Bytes>& arguments,
                    const ptx::Memory& memory) const {
  std::call_once(kernel.decoded, [&] {
    Decoder decoder(kernel.labels, arithmetic_);
    auto program = std::make_shared<Program>();
    for (const auto& [variable, size] : shared_) {
      const auto uses = [&name = variable](const std::string& line) {
        return line.find(name) != std::string::npos;
      };
      if (!std::ranges::any_of(kernel.lines, uses)) continue;
      constexpr std::size_t alignment = 16;
      decoder.add_variable(variable, program->shared_size);
      program->shared_size += (size + alignment - 1) / alignment * alignment;
    }
    for (const auto& [parameter, size] : kernel.parameters) {
      program->parameters.push_back(decoder.add_parameter(parameter));
    }
    for (const std::string& line : kernel.lines) program->instructions.push_back(decoder.decode(line));
    program->registers = decoder.registers();
    kernel.program = std::move(program);
  });
  Thread initial{.registers = kernel.program->registers, .memory = &memory};
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    initial.registers[kernel.program->parameters[i]] = reinterpret_cast<std::uintptr_t>(arguments[i].data());
  }

  ptx::SharedMemory shared(kernel.program->shared_size);
  initial.shared = &shared;
  thread_local std::vector<Thread> threads;  // keeps its memory: kernels have thousands of virtual registers
  threads.resize(grid.threads);
  for (std::uint32_t block = 0; block < grid.blocks; ++block) {
    for (std::uint32_t i = 0; i < grid.threads; ++i) {
      threads[i] = initial;
      threads[i].number = i;
      std::ranges::copy(std::array<u64, built_in.size()>{block, grid.blocks, i, grid.threads},
                        threads[i].registers.begin());
    }
    shared.begin_block();
    run_block(threads, kernel.program->instructions, shared);
  }
}

std::string cuda_type(DType dtype) {
  switch (dtype) {
    case DType::fp32: return "float";
    case DType::bf16: return "penstock::kernels::Bf16";
    case DType::fp16: break;
  }
  return "penstock::kernels::Fp16";
}

}  // namespace penstock::test
