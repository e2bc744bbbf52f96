#include "zero/launch/slurm_text.hpp"

#include <charconv>

namespace penstock::zero {

namespace {

Error refused(const char* name, std::string_view text, const char* wanted) {
  return Error::invalid_argument("find_launch")
      .object(name)
      .wanted(wanted)
      .got('"' + std::string(text) + '"')
      .advice("start the program with srun, or give the rank by --rank and --world");
}

/// Takes a number off the front of `text`. False if there is none.
bool take_number(std::string_view& text, std::uint32_t& number) {
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  text.remove_prefix(static_cast<std::size_t>(parsed.ptr - text.data()));
  return parsed.ec == std::errc();
}

bool take(std::string_view& text, std::string_view word) {
  if (!text.starts_with(word)) return false;
  text.remove_prefix(word.size());
  return true;
}

}  // namespace

Result<std::uint32_t> slurm_tasks_of_node(std::string_view list, std::uint32_t node) {
  const Error bad = refused("SLURM_STEP_TASKS_PER_NODE", list, "numbers of tasks, such as 4(x2),3");
  std::uint64_t nodes = 0;
  do {
    std::uint32_t tasks = 0, repeated = 1;
    if (!take_number(list, tasks)) return bad;
    if (take(list, "(x") && !(take_number(list, repeated) && take(list, ")"))) return bad;
    nodes += repeated;
    if (node < nodes) return tasks;
  } while (take(list, ","));
  if (!list.empty()) return bad;
  return Error::invalid_argument("find_launch")
      .object("SLURM_NODEID")
      .wanted("below " + std::to_string(nodes) + ", the nodes of SLURM_STEP_TASKS_PER_NODE")
      .got(node)
      .advice("start the program with srun, or give the rank by --rank and --world");
}

Result<std::string> slurm_first_node(std::string_view list) {
  const Error bad = refused("SLURM_STEP_NODELIST", list, "names of nodes, such as n[01-04,7],x");
  std::string name;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      name += list.front();
      list.remove_prefix(1);
      continue;
    }
    const std::size_t end = list.find(']');
    if (end == std::string_view::npos) return bad;
    const std::string_view first = list.substr(1, list.find_first_of(",-]") - 1);
    if (first.empty()) return bad;
    name += first;
    list.remove_prefix(end + 1);
  }
  if (name.empty()) return bad;
  return name;
}

}  // namespace penstock::zero
