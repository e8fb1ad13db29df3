//! Text for people: findings, causes, numbers and dates, and sanitized external text.

pub mod cards;
pub mod date;
pub mod humanize;
pub mod sanitize;
