"""What callers import: one public function per op, which checks its arguments and lets the table say who computes."""
